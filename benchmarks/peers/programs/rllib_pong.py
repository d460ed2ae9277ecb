"""Pong by RLlib's IMPALA with the settings of its own example, `pong_impala.py`."""

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

from .games import make_plain
from .progress import parse
from .rllib_impala import REPORT_S, train_on


class Scored(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the raw score of each game that has ended: RLlib's episodes may be parts of games."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: str) -> None:
        super().__init__(env)
        self._path, self._score = Path(path), 0.0

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        self._score = 0.0
        return super().reset(**keywords)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play a frame."""
        observation, reward, terminated, truncated, info = super().step(action)
        self._score += float(reward)
        if terminated or truncated:
            with self._path.open("a") as file:
                file.write(f"{self._score}\n")
        return observation, reward, terminated, truncated, info


def make_pong(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """One game with RLlib's wrappers."""
    plain = make_plain(frameskip=1, render_mode="rgb_array")
    return wrap_atari_for_new_api_stack(Scored(plain, config["scores"]), dim=64, framestack=4)


def published(settings: dict[str, Any], seed: int, scores: Path) -> IMPALAConfig:
    """The example's settings; the caller gives the number of processes that play."""
    network = DefaultModelConfig(
        conv_filters=[[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]],
        conv_activation="relu",
        head_fcnet_hiddens=[256],
        vf_share_layers=True,
    )
    return (
        IMPALAConfig()
        .environment("pong", env_config={"scores": str(scores)}, clip_rewards=True)
        .framework("torch")
        .env_runners(num_env_runners=settings["runners"], num_envs_per_env_runner=5)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=500,
            grad_clip=40.0,
            grad_clip_by="global_norm",
            lr=0.007,
            vf_loss_coeff=0.5,
            entropy_coeff=0.008,
            broadcast_interval=5,
        )
        .rl_module(model_config=network)
        .debugging(seed=seed)
        .reporting(min_time_s_per_iteration=REPORT_S)
    )


def main() -> None:
    """Train until the goal is reached or the time is over."""
    settings, seed, progress = parse()
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=settings["runners"] + 2)
    register_env("pong", make_pong)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scores.txt"
        path.touch()
        algorithm = published(settings, seed, path).build_algo()
        sampled, over = 0, False
        with path.open() as ended:
            while not over:
                sampled = train_on(algorithm, sampled)
                over = progress.over(sampled, [float(line) for line in ended])
        algorithm.stop()


if __name__ == "__main__":
    main()
