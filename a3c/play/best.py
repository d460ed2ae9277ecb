"""The best checkpoint of a run by evaluation: a copy in `best/<step>`, which is never pruned."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from a3c.run import checkpoint
from a3c.run.checkpoint import Manifest
from a3c.run.rundir import RunDir

if TYPE_CHECKING:
    from a3c.play.playground import Summary  # TensorFlow

SCORE = "evaluation.json"
_CANDIDATE = ".candidate-"


class Best(NamedTuple):
    """A kept checkpoint, and the mean return of its evaluation games."""

    path: Path
    step: int
    mean: float
    episodes: int


def folder(run: RunDir) -> Path:
    return run.path / "best"


def find(run: RunDir) -> Best | None:
    """The best checkpoint of a run, its files not verified; None if no checkpoint was kept yet."""
    found = []
    for path in checkpoint.steps(folder(run)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            score = json.loads((path / SCORE).read_bytes())
            found.append(Best(path, int(path.name), float(score["mean"]), int(score["episodes"])))
    return max((b for b in found if math.isfinite(b.mean)), key=lambda b: b.mean, default=None)


def copy_candidate(run: RunDir, path: Path) -> tuple[Path, Manifest]:
    """Copy a checkpoint to where pruning can't remove it; the copy and its verified manifest.

    Raises DamagedCheckpointError if the checkpoint is damaged or gone.
    """
    manifest = checkpoint.read_manifest(path)
    candidate = folder(run) / f"{_CANDIDATE}{path.name}"
    shutil.rmtree(candidate, ignore_errors=True)
    candidate.mkdir(mode=0o700, parents=True)
    for name in (checkpoint.MANIFEST, *manifest.files):
        shutil.copyfile(checkpoint.own_file(path, name), candidate / name, follow_symlinks=False)
    return candidate, checkpoint.verify(candidate)


def keep(run: RunDir, candidate: Path, manifest: Manifest, summary: Summary) -> Best:
    """Make a candidate the best checkpoint, then remove the former best."""
    score = {"step": manifest.step, "best_by": "mean", **summary._asdict()}
    (candidate / SCORE).write_text(json.dumps(score, indent=1) + "\n")
    path = folder(run) / str(manifest.step)
    shutil.rmtree(path, ignore_errors=True)
    candidate.rename(path)
    clear(run, spare=path)
    return Best(path, manifest.step, summary.mean, summary.episodes)


def clear(run: RunDir, spare: Path | None = None) -> None:
    """Remove candidates; with `spare`, also the former best."""
    for path in folder(run).glob("*" if spare else f"{_CANDIDATE}*"):
        if path != spare:
            shutil.rmtree(path, ignore_errors=True)
