"""Decide whether a run is solved, by whole games played with the exact weights that are kept.

The mean of training's last 100 games says only that a run may be solved. The weights changed during
those games, and over many windows some mean is high by chance. So the chief writes a frozen
snapshot beside the checkpoints. A separate process (`a3c.learn.games`) plays it while training
continues.
"""

from __future__ import annotations

from a3c.config import RunConfig
from a3c.run.checkpoint import Manifest

FOLDER = "candidate"


def is_solved(manifest: Manifest, config: RunConfig) -> bool:
    """Whether the weights of a checkpoint reach the current goal of the run."""
    if manifest.reason != "solved" or config.stop_at_return is None:
        return False
    if manifest.evaluation is not None:
        return bool(manifest.evaluation["mean"] >= config.stop_at_return)
    mean = manifest.mean_return_100
    return not config.evaluation_episodes and mean is not None and mean >= config.stop_at_return


def is_over(manifest: Manifest, config: RunConfig) -> bool:
    """Whether the run ends with this checkpoint; resuming a run may change its goals."""
    return is_solved(manifest, config) or (
        manifest.reason == "max_env_steps" and manifest.step >= config.max_env_steps
    )
