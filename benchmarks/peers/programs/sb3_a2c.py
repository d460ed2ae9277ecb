"""stable-baselines3's A2C on its usual Atari wrappers, with the network of the A3C paper."""

from typing import Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from .counter import Counter, parse
from .torch_networks import PAPER, UNITS, trunk

# With these, `ALE/Pong-v5` is what the tutorials and the zoo call PongNoFrameskip-v4, which ale-py
# no longer registers.
KEYWORDS = {"frameskip": 1, "repeat_action_probability": 0.0}
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "ale-py", "numpy")


class PaperTrunk(BaseFeaturesExtractor):
    """16 and 32 filters, 256 units."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, UNITS[PAPER])
        self.layers = trunk(PAPER, UNITS[PAPER])

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features of observations that are scaled to 1."""
        return self.layers(observations)


class Watch(BaseCallback):
    """Counts before each rollout."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def _on_rollout_start(self) -> None:
        self._counter.count(self.model.num_timesteps)

    def _on_step(self) -> bool:
        return True


def make_envs(num_envs: int, vec_env: str, seed: int = 0, game: str = "Pong") -> VecEnv:
    """Games in a process each (`subproc`), or all in this one (`dummy`)."""
    gymnasium.register_envs(ale_py)
    made = make_atari_env(
        f"ALE/{game}-v5",
        n_envs=num_envs,
        seed=seed,
        env_kwargs=KEYWORDS,
        vec_env_cls={"subproc": SubprocVecEnv, "dummy": DummyVecEnv}[vec_env],
        # With the default each process would import torch anew: minutes for 32 processes.
        vec_env_kwargs={"start_method": "fork"} if vec_env == "subproc" else {},
    )
    return VecFrameStack(made, 4)


def main() -> None:
    """Train until it is ended."""
    settings, counter = parse(*PACKAGES)
    torch.set_num_threads(settings["threads"])
    envs = make_envs(settings["envs"], settings["vec_env"])
    model = A2C(
        "CnnPolicy",
        envs,
        n_steps=settings["steps"],
        policy_kwargs={"features_extractor_class": PaperTrunk, "net_arch": []},
        device="cpu",
    )
    model.learn(10**9, callback=Watch(counter), log_interval=10**9)


if __name__ == "__main__":
    main()
