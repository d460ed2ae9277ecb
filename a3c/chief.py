"""What worker 0 does besides working: collect episodes, judge the run, write checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from a3c import checkpoint, tensors
from a3c import config as settings
from a3c.checkpoint import Manifest
from a3c.config import Config
from a3c.errors import FatalError
from a3c.metrics import ClusterTracker, JsonlSink
from a3c.store import Reply, Store

log = logging.getLogger(__name__)

DRAIN_INTERVAL_S = 0.5


def prepare(
    store: Store, config: Config, checkpoints: Path, initial: Callable[[], dict[str, np.ndarray]]
) -> Manifest | None:
    """Make the ps ready: attach to an initialised one, else restore, else initialise.

    An initialised ps is never written: a chief that comes back must not undo what the others
    learned meanwhile. Returns the manifest of the newest checkpoint, if there is one.
    """
    found = checkpoint.newest_valid(checkpoints)
    manifest = found[1] if found else None
    if store.is_ready():
        log.info("attached to a ps that is already initialised")
        return manifest
    if found is None:
        log.info("initialising the ps")
        store.initialize(initial())
        return None
    path, manifest = found
    checkpoint.refuse_other_identity(manifest, settings.identity(config), path)
    values = tensors.load(path / checkpoint.PREFIX)
    expected = store.saved_shapes()
    if {name: value.shape for name, value in values.items()} != expected:
        raise FatalError(f"{path} holds other variables than this network needs")
    store.initialize(values)
    log.info("restored the ps from %s, env step %d", path, manifest.step)
    return manifest


class Chief:
    """Judges the run from all workers' episodes and keeps it on disk."""

    def __init__(
        self, store: Store, config: Config, run_dir: Path, reply: Reply, manifest: Manifest | None
    ) -> None:
        now = time.monotonic()
        self._store = store
        self._config = config
        self._checkpoints = run_dir / "checkpoints"
        self._episodes = JsonlSink(run_dir / "metrics" / "episodes.jsonl")
        self._episodes.restart(reply.global_step)
        self._tracker = ClusterTracker(now, reply.global_step, reply.num_updates)
        self._wall_before = manifest.wall_s if manifest else 0.0
        if manifest:
            self._tracker.episodes = manifest.episodes
            self._tracker.returns.extend(manifest.recent_returns)
        self._began = now
        self._drained = now
        self._saved = now

    @property
    def wall_s(self) -> float:
        """Seconds of training, over all resumes."""
        return self._wall_before + time.monotonic() - self._began

    def tick(self, reply: Reply) -> str | None:
        """Do what is due; the reason to end the run, or None."""
        now = time.monotonic()
        if now - self._drained >= DRAIN_INTERVAL_S:
            self._drained = now
            self._collect()
        if now - self._saved >= self._config.run.checkpoint_interval_s:
            self.save("interval")
        target, mean = self._config.run.stop_at_return, self._tracker.mean_return
        if target is not None and mean is not None and mean >= target:
            return "solved"
        return "max_env_steps" if reply.global_step >= self._config.run.max_env_steps else None

    def row(self, reply: Reply) -> dict[str, float]:
        """The cluster's metrics since the last row."""
        now = time.monotonic()
        workers = int(self._store.attached().sum())
        row = self._tracker.row(now, reply.global_step, reply.num_updates, workers)
        return row | {"wall_s": self.wall_s}

    def save(self, reason: str) -> Path | None:
        """Write a checkpoint; on a full or broken disk say so and let training go on."""
        self._saved = time.monotonic()
        values = self._store.snapshot()
        try:
            path = checkpoint.write(
                self._checkpoints,
                self._manifest(values, reason),
                lambda prefix: tensors.save(prefix, values),
            )
            checkpoint.prune(self._checkpoints, self._config.run.keep_checkpoints)
        except Exception as error:  # any disk trouble, whatever TensorFlow calls it
            log.error("checkpoint failed, training goes on: %s", str(error).splitlines()[0])
            return None
        log.info("checkpoint %s (%s)", path, reason)
        return path

    def end_run(self, reason: str, timeout_s: float = 10.0) -> None:
        """Tell everyone that it is over, wait for their last pushes, and save."""
        self._store.finish()
        deadline = time.monotonic() + timeout_s
        while self._store.attached()[1:].any() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._collect()
        self.save(reason)

    def _collect(self) -> None:
        reports = self._store.drain()
        self._tracker.add(reports)
        for worker, episode_return, length, env_step in reports.tolist():
            row = {"worker": int(worker), "return": episode_return, "length": int(length)}
            self._episodes.write(int(env_step), row)

    def _manifest(self, values: dict[str, np.ndarray], reason: str) -> Manifest:
        return Manifest(
            step=int(values["global_step"]),
            num_updates=int(values["num_updates"]),
            wall_s=round(self.wall_s, 3),
            written_at=round(time.time(), 3),
            reason=reason,
            config=settings.to_dict(self._config),
            config_digest=settings.digest(self._config),
            identity=settings.identity(self._config),
            episodes=self._tracker.episodes,
            recent_returns=list(self._tracker.returns),
            mean_return_100=self._tracker.mean_return,
        )
