"""Whether a run is solved: whole games, played with exactly the weights that would be kept.

The mean of training's last 100 games says that a run may be solved. They were played by weights
that changed meanwhile, and of many windows one is lucky. So the chief writes a frozen snapshot
beside the checkpoints and has it played, in a process of its own (`a3c.learn.games`), while
training goes on.
"""

from __future__ import annotations

from a3c.config import RunConfig
from a3c.run.checkpoint import Manifest

FOLDER = "candidate"


def is_solved(manifest: Manifest, config: RunConfig) -> bool:
    """Whether the weights of a checkpoint have solved the run, by the mark that it has now."""
    if manifest.reason != "solved" or config.stop_at_return is None:
        return False
    if manifest.evaluation is not None:
        return bool(manifest.evaluation["mean"] >= config.stop_at_return)
    mean = manifest.mean_return_100
    return not config.evaluation_episodes and mean is not None and mean >= config.stop_at_return


def is_over(manifest: Manifest, config: RunConfig) -> bool:
    """Whether a run ends with this checkpoint: one that was resumed may have got new goals."""
    return is_solved(manifest, config) or (
        manifest.reason == "max_env_steps" and manifest.step >= config.max_env_steps
    )
