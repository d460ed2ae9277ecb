"""Sample Factory's APPO on CPU; its `convnet_impala` with 256 units is the A3C paper's network."""

import tempfile
from typing import Any

import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStack, TransformReward
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import NumpyObsWrapper
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults

from .counter import Counter, parse

PACKAGES = ("sample-factory", "torch", "gymnasium", "ale-py", "numpy")
FIXED = {  # what makes it the same task and network; the rest is its published Atari configuration
    "env": "pong",
    "device": "cpu",
    "encoder_conv_architecture": "convnet_impala",
    "encoder_conv_mlp_layers": 256,
    "num_epochs": 1,
    "num_batches_per_epoch": 1,
    "train_for_env_steps": 10**12,
    "save_every_sec": 10**6,
    "save_best_every_sec": 10**6,
    "experiment_summaries_interval": 10**6,
    "normalize_input": False,
    "normalize_returns": False,
    "log_to_file": False,
}


def make_pong(_name: str, _config: Any, _env_config: Any, render_mode: str | None = None) -> Any:
    """One game."""
    # Not by id: releases of ale-py that carry the ROMs don't register with gymnasium 0.29.
    plain = AtariEnv("pong", frameskip=1, repeat_action_probability=0.0, render_mode=render_mode)
    shrunk = AtariPreprocessing(plain, noop_max=30, frame_skip=4, screen_size=84)
    clipped = TransformReward(shrunk, lambda reward: float(np.sign(float(reward))))
    limited = gymnasium.wrappers.TimeLimit(clipped, 27_000)
    return NumpyObsWrapper(FrameStack(limited, 4))


class Watch(AlgoObserver):
    """Counts the samples of each update."""

    def __init__(self, counter: Counter, samples: int) -> None:
        self._counter, self._samples = counter, samples

    def on_training_step(self, _runner: Runner, training_iteration_since_resume: int) -> None:
        """Called after an update."""
        self._counter.count(training_iteration_since_resume * self._samples)


def configured(options: dict[str, Any]) -> Runner:
    """A runner with these options, and for the rest with those that are published for Atari."""
    argv = [f"--{name}={value}" for name, value in options.items()]
    parser, partial = parse_sf_args(argv)
    atari_override_defaults(partial.env, parser)
    return make_runner(parse_full_cfg(parser, argv))[1]


def main() -> None:
    """Train until it is ended."""
    settings, counter = parse(*PACKAGES)
    register_env("pong", make_pong)
    with tempfile.TemporaryDirectory() as scratch:
        options = FIXED | settings | {"train_dir": scratch, "experiment": "peer"}
        runner = configured(options)
        runner.register_observer(Watch(counter, runner.cfg.batch_size))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
