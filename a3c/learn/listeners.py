"""Listeners of the training loop: each is called with every rollout and its update."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from a3c.errors import FatalError, UnplayableError
from a3c.learn.chief import Chief
from a3c.learn.learner import Learner, Update
from a3c.learn.rollout import Rollout, Stopwatch
from a3c.process.console import count
from a3c.run.metrics import Sink, WorkerTracker
from a3c.server.store import Store

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 0.5
_REMEDIES = {  # of what isn't finite; each may follow from those before it
    "weights": "give a lower --learning-rate, and go on from an older checkpoint",
    "observations": "mend the environment, which gives them",
    "rewards": "mend the environment, which gives them, or give a --reward-clip",
    "losses": "give a lower --reward-scale or --learning-rate, or mend the network",
}


class EpisodeReports:
    """Collects ended games and sends them to the chief, at most twice a second."""

    def __init__(self, store: Store, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._waiting: list[tuple[float, float, float, float]] = []
        self._sent = time.monotonic()
        self.dropped = 0

    def __call__(self, rollout: Rollout, update: Update) -> None:
        """Add ended games; send all that wait if the last report is old enough."""
        at = update.reply.global_step
        self._waiting += [(self._worker, e.episode_return, e.length, at) for e in rollout.episodes]
        if time.monotonic() - self._sent >= REPORT_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Send all games that wait to be reported."""
        self._sent = time.monotonic()
        if self._waiting and not self._store.report(np.array(self._waiting, np.float64)):
            self.dropped += len(self._waiting)
        self._waiting.clear()


class DropLimit:
    """Gives up after too many dropped rollouts in a row, because a restart can't help then."""

    def __init__(self, learner: Learner, store: Store, limit: int) -> None:
        """`limit` 0 means never."""
        self._learner, self._store, self._limit = learner, store, limit
        self._in_a_row = 0

    def __call__(self, rollout: Rollout, update: Update) -> None:
        """Count; raises UnplayableError, or FatalError where the weights on the ps are lost."""
        self._in_a_row = 0 if update.pushed else self._in_a_row + 1
        if update.pushed:
            return
        loss, norm = update.metrics["loss/total"], update.metrics["train/gradient_norm"]
        log.warning("dropped a rollout: loss %s, gradient norm %s", loss, norm)
        if not 0 < self._limit <= self._in_a_row:
            return
        culprit = not_finite(rollout, self._learner.reply.parameters)
        if culprit == "weights":
            self._store.detach()
        raise (FatalError if culprit == "weights" else UnplayableError)(
            f"dropped {count(self._in_a_row, 'rollout')} in a row, because the {culprit} were not "
            f"finite: {_REMEDIES[culprit]}; --max-dropped-rollouts sets the limit"
        )


def not_finite(rollout: Rollout, parameters: np.ndarray) -> str:
    """The cause of a loss that isn't finite: one of the keys of `_REMEDIES`."""
    causes = zip(_REMEDIES, (parameters, rollout.observations, rollout.rewards), strict=False)
    return next((name for name, values in causes if not np.isfinite(values).all()), "losses")


class Rows:
    """Writes a row of metrics at intervals: to the log, to metrics/ and to TensorBoard.

    The chief's rows also hold the cluster's metrics.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        interval_s: float,
        learner: Learner,
        stopwatch: Stopwatch,
        reports: EpisodeReports,
        chief: Chief | None,
    ) -> None:
        self._sinks, self._interval_s = sinks, interval_s
        self._learner, self._stopwatch = learner, stopwatch
        self._reports, self._chief = reports, chief
        self._written = time.monotonic()
        self._tracker = WorkerTracker(self._written)

    def __call__(self, rollout: Rollout, update: Update) -> None:
        """Count a rollout and its update; write a row if one is due."""
        steps, games, metrics = rollout.num_env_steps, rollout.episodes, update.metrics
        self._tracker.add(metrics, steps, update.pushed, games, update.num_pushes)
        self.write_if_due()

    def write_if_due(self) -> None:
        """Write a row if the last one is old enough."""
        if time.monotonic() - self._written >= self._interval_s:
            self.write()

    def write(self, *, whole_cluster: bool = True) -> None:
        """Write a row; `whole_cluster` False asks the ps nothing."""
        reply = self._learner.reply
        self._written = time.monotonic()
        self._tracker.dropped_reports = self._reports.dropped
        row = self._tracker.row(self._written, self._stopwatch.take(), reply.parameters)
        if self._chief and whole_cluster:
            row |= self._chief.row(reply)
        for sink in self._sinks:
            sink.write(reply.global_step, row)
        parts = [f"env steps {reply.global_step:,}"]
        for label, name, form in (
            ("cluster/s", "cluster/env_steps_per_s", ",.0f"),
            ("mine/s", "worker/env_steps_per_s", ",.0f"),
            ("mean return", "cluster/mean_return_100", ".2f"),
            ("return", "episode/return", ".2f"),
            ("loss", "loss/total", ".4f"),
            ("entropy", "loss/entropy", ".3f"),
        ):
            if name in row:
                parts.append(f"{label} {row[name]:{form}}")
        log.info("%s", "  ".join(parts))
