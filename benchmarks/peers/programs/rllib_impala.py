"""RLlib's IMPALA on CPU, with the network of the A3C paper as an RLModule of its new API."""

from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.tune.registry import register_env

from .counter import parse
from .games import make_pong
from .torch_networks import PAPER, ActorCritic

PACKAGES = ("ray", "torch", "gymnasium", "ale-py", "numpy")
REPORT_S = 0.5  # the interval at which `train` returns


class PaperModule(TorchRLModule, ValueFunctionAPI):
    """16 and 32 filters, 256 units, policy and value on them."""

    def setup(self) -> None:
        """Make the layers."""
        assert isinstance(self.action_space, gymnasium.spaces.Discrete)
        self.layers = ActorCritic(int(self.action_space.n), PAPER)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.layers(batch[Columns.OBS])[0]}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        features = self.layers.trunk(batch[Columns.OBS].float() / 255.0)
        logits = self.layers.policy(features)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Any:
        """Values of observations; their features may be computed already."""
        if embeddings is None:
            embeddings = self.layers.trunk(batch[Columns.OBS].float() / 255.0)
        return self.layers.value(embeddings)[:, 0]


def train_on(algorithm: Any, sampled: int) -> int:
    """Train for `REPORT_S`; returns all env steps so far, or `sampled` if none are reported."""
    runners = algorithm.train().get("env_runners", {})
    return int(runners.get("num_env_steps_sampled_lifetime", sampled))


def main() -> None:
    """Train until the process is killed."""
    settings, counter = parse(*PACKAGES)
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=settings["runners"] + 2)
    register_env("pong", lambda _: make_pong())
    config = (
        IMPALAConfig()
        .environment("pong")
        .framework("torch")
        .env_runners(
            num_env_runners=settings["runners"],
            num_envs_per_env_runner=settings["envs"],
            rollout_fragment_length=settings["steps"],
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=settings["batch"], lr=5e-4, grad_clip=40.0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=PaperModule))
        .reporting(min_time_s_per_iteration=REPORT_S)
    )
    algorithm = config.build_algo()
    sampled = 0
    while True:
        sampled = train_on(algorithm, sampled)
        if sampled:
            counter.count(sampled)


if __name__ == "__main__":
    main()
