"""Whether a run is solved: whole games, played with exactly the weights that would be kept.

The mean of training's last 100 games says that a run may be solved. They were played by weights
that changed meanwhile, and of many windows one is lucky. So the chief writes a frozen snapshot
beside the checkpoints and has `evaluate.py` play it, in a process of its own, while training goes
on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from a3c.checkpoint import Manifest
from a3c.config import RunConfig
from a3c.rundir import REPOSITORY

log = logging.getLogger(__name__)

FOLDER = "candidate"
NICENESS = 2  # about two thirds of what a worker on the same core gets


class Verdict(NamedTuple):
    """What the games came to; no evaluation where they could not be played."""

    evaluation: dict[str, Any] | None
    mark: float

    @property
    def is_solved(self) -> bool:
        """Whether their mean reaches the mark."""
        return self.evaluation is not None and self.evaluation["mean"] >= self.mark


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


class Confirmation:
    """The games of one frozen snapshot, being played. `candidate` is its checkpoint."""

    def __init__(self, candidate: Path, games: int, mark: float) -> None:
        self.candidate = candidate
        self._mark = mark
        command = [sys.executable, str(REPOSITORY / "evaluate.py"), str(candidate)]
        with contextlib.ExitStack() as files:
            self._said = files.enter_context(tempfile.TemporaryFile())
            self._errors = files.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [*command, "--episodes", str(games), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._errors,
            )
            files.pop_all()
        with contextlib.suppress(OSError):  # it may have ended
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)

    def poll(self) -> Verdict | None:
        """The verdict, once the games are over."""
        code = self._process.poll()
        if code is None:
            return None
        if code == 0:
            return Verdict(_summary(_text(self._said)), self._mark)
        lines = _text(self._errors).strip().splitlines() or ["it said nothing"]
        log.error("evaluate.py ended with %d: %s", code, lines[-1])
        return Verdict(None, self._mark)

    def close(self) -> None:
        """End the games, and remove the snapshot unless it was taken away."""
        self._process.kill()
        self._process.wait()
        self._said.close()
        self._errors.close()
        shutil.rmtree(self.candidate.parent, ignore_errors=True)


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _summary(said: str) -> dict[str, Any] | None:
    """The scores; not each game's."""
    try:
        result = json.loads(said)
        kept = {k: v for k, v in result.items() if k not in ("returns", "lengths", "checkpoint")}
        return kept if math.isfinite(kept["mean"]) else None
    except (ValueError, KeyError, TypeError):
        return None
