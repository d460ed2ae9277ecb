"""The evaluator of a run: plays every new checkpoint, logs its score, keeps the best."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from a3c import checkpoint
from a3c.checkpoint import DamagedCheckpointError, Manifest
from a3c.heartbeat import Heartbeat
from a3c.metrics import Sink
from a3c.playing.scores import Summary
from a3c.rundir import RunDir
from a3c.signals import StopRequest

log = logging.getLogger(__name__)

POLL_S = 1.0
OVER = ("solved", "max_env_steps")


def follow(
    run: RunDir,
    play: Callable[[Path], Summary],
    sinks: Sequence[Sink],
    stop: StopRequest,
    heartbeat: Heartbeat,
) -> None:
    """Evaluate the newest checkpoint again and again, until the run is over or a signal comes.

    `play` loads a checkpoint and plays whole games with it; it must beat the heartbeat. Checkpoints
    that are damaged, or pruned while they are read, are walked past.
    """
    seen = _restart(run, sinks)
    best = float("-inf")
    while not stop.requested:
        heartbeat.beat()
        found = _newest(run, seen)
        if found is None:
            stop.wait(POLL_S)
            continue
        path, manifest = found
        seen = manifest.step
        try:
            summary = play(path)
        except DamagedCheckpointError as error:
            log.warning("checkpoint %s can't be read (%s)", path, error)
            continue
        for sink in sinks:
            sink.write(manifest.step, summary.metrics())
        log.info("env step %d: mean %.2f over %d games", seen, summary.mean, summary.episodes)
        if summary.mean > best:
            best = summary.mean
            _keep(run, path)
        if manifest.reason in OVER:
            return


def _restart(run: RunDir, sinks: Sequence[Sink]) -> int:
    """Tell the sinks where the run is; checkpoints before that need no evaluation."""
    steps = [int(path.name) for path in checkpoint.steps(run.checkpoints)]
    for sink in sinks:
        sink.restart(max(steps, default=0))
    return -1


def _newest(run: RunDir, seen: int) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that verifies, if it isn't the one that was seen last."""
    for path in reversed(checkpoint.steps(run.checkpoints)):
        if int(path.name) == seen:
            return None
        try:
            return path, checkpoint.verify(path)
        except DamagedCheckpointError:
            continue
    return None


def _keep(run: RunDir, path: Path) -> None:
    """Keep a copy of the best checkpoint in `best/`; the former one goes when this one is whole."""
    folder = run.path / "best"
    temporary = folder / f".writing-{path.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        shutil.copytree(path, temporary, symlinks=True)
        former = [old for old in folder.iterdir() if old != temporary]
        temporary.rename(folder / f"{path.name}.new")
        for old in former:
            shutil.rmtree(old, ignore_errors=True)
        (folder / f"{path.name}.new").rename(folder / path.name)
    except OSError as error:
        log.error("can't keep the best checkpoint (%s); evaluation goes on", error.strerror)
