"""Find a checkpoint by a run's name or directory or by its own, and keep the best of a run.

`zoo/NAME` is a compact checkpoint that is shipped with this code, in any current directory.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from a3c.config import Config, command_line
from a3c.errors import UserError
from a3c.process import console
from a3c.run import checkpoint, rundir
from a3c.run.checkpoint import DamagedCheckpointError, Manifest
from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch import status

if TYPE_CHECKING:
    import numpy as np

    from a3c.play.playground import Summary  # TensorFlow

Which = Literal["newest", "best"]

ZOO = "zoo"
BEST = "best"  # best/<env step> is a copy of a checkpoint that is never pruned
SCORE = "evaluation.json"  # in that copy


@dataclass(frozen=True)
class Source:
    """A checkpoint with every byte verified, and its run, if it was found through a run."""

    path: Path
    manifest: Manifest
    run: RunDir | None
    best_by: str | None = None  # the score by which it is the best, if the best was requested

    @property
    def config(self) -> Config:
        """The configuration of the training run, which the checkpoint contains completely."""
        return command_line.from_dict(self.manifest.config, str(self.path / checkpoint.MANIFEST))


def find_checkpoint(name: str | None, which: Which = "newest") -> Source:
    """The checkpoint that `name` stands for; None means the newest run. Raises UserError.

    For a run it is the newest checkpoint that verifies, or the best one: the checkpoint that the
    evaluator kept, or else the one with the best mean return of the last 100 training games.
    """
    if which not in get_args(Which):
        raise UserError(f"which {which!r} is refused: give {' or '.join(get_args(Which))}")
    if name is not None and Path(name).parts[:1] == (ZOO,) and not os.path.lexists(name):
        name = _in_zoo(name)
    with contextlib.suppress(OSError):  # `rundir.find` reports what is wrong with the name
        if name is not None and (Path(name) / checkpoint.MANIFEST).is_file():
            if which != "newest":
                what = f"--which {which}: {name} is one checkpoint"
                raise UserError(f"{what}; give the run's directory")
            return Source(Path(name).absolute(), _verified(Path(name), "give another"), None)
    places = f"a run directory, a name from {rundir.RUNS}/, or the directory of a checkpoint"
    run = rundir.find(name, "run or checkpoint", places)
    if which == "best":
        kept = find_best(run)
        path = kept.path if kept else checkpoint.best(run.checkpoints)
        if path is None:
            raise UserError(
                f"run {run.path} has no checkpoint with 100 games behind it yet: use --which newest"
            )
        manifest = _verified(path, "use --which newest")
        by, mean = "the last 100 games in training", manifest.mean_return_100
        if kept:
            by, mean = f"the evaluator's {console.count(kept.episodes, 'game')}", kept.mean
        return Source(path, manifest, run, f"mean return of {by}, {mean:,.2f}")
    if newest := checkpoint.newest_valid(run.checkpoints):
        return Source(*newest, run)
    found = status.read(run)
    if not found.has_ended:
        raise UserError(f"run {run.path} has no checkpoint yet: wait for its first")
    here = shlex.quote(console.relative_path(run.path))
    resume = f"{console.command('launch_cluster.py')} --resume --run-dir {here}"
    what = f"run {run.path} has no checkpoint, and is {found.state}"
    raise UserError(f"{what}: see its logs/, or go on with `{resume}`")


def with_source(config: Config, run: RunDir) -> Config:
    """The configuration with the path of the checkpoint that `--start-from` names.

    A run that has checkpoints goes on from those, and the named one may be gone.
    """
    if config.run.start_from is None or checkpoint.by_step(run.checkpoints):
        return config
    source = str(find_checkpoint(config.run.start_from).path)
    return replace(config, run=replace(config.run, start_from=source))


def _in_zoo(name: str) -> str:
    """The path of an agent of the zoo; otherwise a UserError that lists them."""
    path = REPOSITORY / name
    if (path / checkpoint.MANIFEST).is_file():
        return str(path)
    there = sorted(path.parent.name for path in (REPOSITORY / ZOO).glob(f"*/{checkpoint.MANIFEST}"))
    listed = ", ".join(f"{ZOO}/{agent}" for agent in there) or "none yet"
    raise UserError(f"no agent {name!r} in the zoo: give one of those there, {listed}")


def _verified(path: Path, remedy: str) -> Manifest:
    try:
        return checkpoint.verify(path)
    except DamagedCheckpointError as error:
        raise UserError(f"checkpoint {path} is damaged ({error}): {remedy}") from None


class Best(NamedTuple):
    path: Path
    step: int
    mean: float
    episodes: int


def find_best(run: RunDir) -> Best | None:
    """The best checkpoint of a run, its files not verified; None if no checkpoint was kept yet."""
    found = []
    for step, path in checkpoint.by_step(run.path / BEST).items():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            score = json.loads((path / SCORE).read_bytes())
            found.append(Best(path, step, float(score["mean"]), int(score["episodes"])))
    return max((b for b in found if math.isfinite(b.mean)), key=lambda b: b.mean, default=None)


def keep_best(
    run: RunDir, manifest: Manifest, values: Mapping[str, np.ndarray], summary: Summary
) -> Best:
    """Write a checkpoint, which may be pruned by now, as the best; then remove the former best."""
    score = {"step": manifest.step, "best_by": "mean", **summary._asdict()}

    def save(prefix: Path) -> None:
        checkpoint.save_variables(prefix, values)
        prefix.with_name(SCORE).write_text(json.dumps(score, indent=1) + "\n")

    path = checkpoint.write(run.path / BEST, manifest, save)
    for other in path.parent.iterdir():
        if other != path:
            shutil.rmtree(other, ignore_errors=True)
    return Best(path, manifest.step, summary.mean, summary.episodes)
