"""What worker 0 does besides working: collect episodes, judge the run, write checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from a3c import checkpoint, past, tensors
from a3c import config as settings
from a3c.checkpoint import Manifest
from a3c.config import Config
from a3c.errors import FatalError
from a3c.exchange import Reply
from a3c.metrics import ClusterTracker, JsonlSink
from a3c.past import Life
from a3c.store import Snapshot, Store

log = logging.getLogger(__name__)

DRAIN_INTERVAL_S = 0.5


def prepare(
    store: Store, config: Config, run_dir: Path, initial: Callable[[], dict[str, np.ndarray]]
) -> Manifest | None:
    """Make the ps ready: attach to an initialised one, else restore, else initialise.

    An initialised ps is never written: a chief that comes back must not undo what the others
    learned meanwhile. Returns the manifest of the newest checkpoint, if there is one.
    """
    checkpoints = run_dir / "checkpoints"
    checkpoint.clear_unfinished(checkpoints)
    found = checkpoint.newest_valid(checkpoints)
    manifest = found[1] if found else None
    if store.is_ready():
        log.info("attached to a ps that is already initialised")
        return manifest
    before = past.newest_step(run_dir / "metrics")
    if found is None:
        log.info("initialising the ps")
        store.initialize(initial())
    else:
        _restore(store, config, *found)
    step = manifest.step if manifest else 0
    if before is not None and before > step:
        log.warning("%s", past.loss(before, step))
        JsonlSink(run_dir / "metrics" / "losses.jsonl").write(step, {"from": before})
    return manifest


def _restore(store: Store, config: Config, path: Path, manifest: Manifest) -> None:
    checkpoint.refuse_other_identity(manifest, settings.identity(config), path)
    try:
        values = tensors.load(path / checkpoint.PREFIX)
    except tensors.UNREADABLE as error:  # though every byte is as it was written
        reason = str(error).splitlines()[0]
        raise FatalError(f"{path} can't be read ({reason}): take it away to go on") from None
    expected = store.saved_shapes()
    if {name: value.shape for name, value in values.items()} != expected:
        raise FatalError(f"{path} holds other variables than this network needs")
    store.initialize(values)
    log.info("restored the ps from %s, env step %d", path, manifest.step)


class Chief:
    """Judges the run from all workers' episodes and keeps it on disk."""

    def __init__(
        self,
        store: Store,
        config: Config,
        run_dir: Path,
        reply: Reply,
        manifest: Manifest | None,
        life: Life,
    ) -> None:
        now = time.monotonic()
        self._store = store
        self._config = config
        self._checkpoints = run_dir / "checkpoints"
        self._solved_mean: float | None = None
        self._tracker = ClusterTracker(now, reply.global_step, reply.num_updates)
        known = past.remember(run_dir / "metrics", manifest, life)
        self._wall_before = known.wall_s
        self._tracker.episodes = known.episodes
        self._tracker.returns.extend(known.returns)
        reports = run_dir / "metrics" / "episodes.jsonl"
        self._episodes = JsonlSink(reports)
        self._episodes.restart(
            past.restart_point(reports, life, reply.global_step),
            ps_life=life.number,
            episodes=known.episodes,
        )
        self._began = now
        self._drained = now
        # Nobody has saved since the last chief: what is due is due now.
        self._saved = now if known.is_fresh else -math.inf

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
        snapshot = self._store.snapshot()
        try:
            path = checkpoint.write(
                self._checkpoints,
                self._manifest(snapshot, reason),
                lambda prefix: tensors.save(prefix, snapshot.values),
            )
            checkpoint.prune(self._checkpoints, self._config.run.keep_checkpoints, path)
        except Exception as error:  # any disk trouble, whatever TensorFlow calls it
            log.error("checkpoint failed, training goes on: %s", str(error).splitlines()[0])
            return None
        log.info("checkpoint %s (%s)", path, reason)
        return path

    def end_run(self, reason: str, timeout_s: float = 10.0) -> None:
        """Tell everyone that it is over, wait for their last pushes, and save.

        Games that end meanwhile don't change by which mean the run was solved.
        """
        if reason == "solved":
            self._solved_mean = self._tracker.mean_return
        self._store.finish(reason)
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

    def _manifest(self, snapshot: Snapshot, reason: str) -> Manifest:
        return Manifest(
            step=int(snapshot.values["global_step"]),
            num_updates=int(snapshot.values["num_updates"]),
            updates_during=snapshot.updates_during,
            samples_waiting=snapshot.samples_waiting,
            wall_s=round(self.wall_s, 3),
            written_at=round(time.time(), 3),
            reason=reason,
            config=settings.to_dict(self._config),
            config_digest=settings.digest(self._config),
            identity=settings.identity(self._config),
            episodes=self._tracker.episodes,
            recent_returns=list(self._tracker.returns),
            mean_return_100=self._tracker.mean_return
            if self._solved_mean is None
            else self._solved_mean,
        )
