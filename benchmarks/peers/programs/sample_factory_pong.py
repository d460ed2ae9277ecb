"""Pong by Sample Factory's APPO with the settings that it publishes for Atari."""

import tempfile
from typing import Any

from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC
from sample_factory.envs.env_utils import register_env

from .progress import Progress, parse
from .sample_factory_appo import configured, make_pong

FIXED = {  # none of these affects learning
    "env": "pong",
    "device": "cpu",
    "save_every_sec": 10**6,
    "save_best_every_sec": 10**6,
    "log_to_file": False,
}


class Judge(AlgoObserver):
    """Passes the scores of whole games on, and ends training when Pong is solved."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._scores: list[float] = []

    def on_init(self, runner: Runner) -> None:
        """Register for the scores."""
        runner.register_episodic_stats_handler(self._take)

    def _take(self, _runner: Runner, message: dict[str, Any], _policy: int) -> None:
        # Pong's rewards are -1, 0 and 1: clipped or not is the same.
        self._scores.append(float(message[EPISODIC]["reward"]))

    def on_training_step(self, runner: Runner, _iteration: int) -> None:
        """Called after an update; the runner counts frames."""
        env_steps = runner.env_steps.get(0, 0) // runner.cfg.env_frameskip
        scores, self._scores = self._scores, []
        if self._progress.over(env_steps, scores):
            runner.cfg.train_for_env_steps = 0  # it ends by itself


def main() -> None:
    """Train until Pong is solved or the time is over."""
    settings, seed, progress = parse()
    register_env("pong", make_pong)
    with tempfile.TemporaryDirectory() as scratch:
        options = FIXED | settings | {"train_dir": scratch, "experiment": "peer", "seed": seed}
        runner = configured(options)
        runner.register_observer(Judge(progress))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
