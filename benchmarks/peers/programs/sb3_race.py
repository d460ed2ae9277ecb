"""An Atari game by stable-baselines3's A2C and PPO with the settings of its zoo (`rl-zoo3`)."""

from typing import Any

import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from .progress import Progress, parse
from .sb3_a2c import make_envs

ENV_STEPS = 10_000_000  # over which the zoo's schedules run


class Judge(BaseCallback):
    """Passes the raw scores of whole games on, and ends training at the goal."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return not self._progress.over(self.num_timesteps, ended)


def make_model(game: str, algorithm: str, seed: int, threads: int, vec_env: str) -> Any:
    """The zoo's `a2c.yml` and `ppo.yml`, section `atari`."""
    torch.set_num_threads(threads)
    common = {"policy": "CnnPolicy", "ent_coef": 0.01, "seed": seed, "device": "cpu"}
    if algorithm == "a2c":
        policy = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
        envs = make_envs(16, vec_env, seed, game)
        return A2C(env=envs, vf_coef=0.25, policy_kwargs=policy, **common)
    return PPO(
        env=make_envs(8, vec_env, seed, game),
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=lambda left: left * 2.5e-4,
        clip_range=lambda left: left * 0.1,
        vf_coef=0.5,
        **common,
    )


def main() -> None:
    """Train until the goal is reached or the time is over."""
    settings, seed, progress = parse()
    model = make_model(**settings, seed=seed)
    model.learn(ENV_STEPS, callback=Judge(progress), log_interval=10**9)
    model.env.close()  # waits for its processes, whose CPU time counts


if __name__ == "__main__":
    main()
