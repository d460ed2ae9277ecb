"""Invariants of a cluster, checked by an independent observer from outside.

The witness reads files, /proc and the ledger of the environments; it sends no requests to the
cluster's processes.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from a3c.run import checkpoint
from a3c.run.rows import Row, last_rows
from tests.faults import faulty_envs
from tests.faults.spread_cluster import HostCluster

WARM_UP_S = 90.0
SHORTEST_LIFE_S = 180.0
GROWTH_MB_PER_MIN = 2.0
GROWN_FILES = 8  # allowed extra open files or threads, as while a checkpoint is written


class Sample(NamedTuple):
    """The resources of a process at one moment."""

    at: float
    rss_mb: float
    files: int
    threads: int


@dataclass
class Witness:
    """Observes a running cluster; after it has ended, `violations` lists the broken invariants."""

    cluster: HostCluster
    lives: dict[tuple[str, int], list[Sample]] = field(default_factory=lambda: defaultdict(list))
    saved: list[tuple[float, int]] = field(default_factory=list)  # when a checkpoint was first seen

    def look(self) -> None:
        """Take one sample of processes and checkpoints."""
        now = time.time()
        for name in self.cluster.hosts:
            pid = self.cluster.pid(name)
            if pid is not None:
                self._sample(now, name, pid)
        newest = max(checkpoint.by_step(self.cluster.run.checkpoints), default=None)
        if newest is not None and (not self.saved or self.saved[-1][1] != newest):
            self.saved.append((now, newest))

    def _sample(self, now: float, name: str, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                rss_mb = process.memory_info().rss / 1e6
                sample = Sample(now, rss_mb, process.num_fds(), process.num_threads())
        except psutil.Error:
            return
        self.lives[name, pid].append(sample)

    def violations(self, ps_deaths: list[float], goal: float) -> list[str]:
        """Every violated invariant, a line for each; for a cluster that has ended."""
        return [
            *self._falls(ps_deaths),
            *self._counts(),
            *self._growth(),
            *(f"left over: {line}" for line in left_over(self.cluster.run.path)),
            *self._learned(goal),
        ]

    def _falls(self, ps_deaths: list[float]) -> Iterator[str]:
        """The step falls only after a ps death, and then to the newest checkpoint."""
        before = 0
        for row in self._rows("worker-0"):
            step, at = int(row["env_steps"]), float(row["time"])
            if step < before:
                deaths = [death for death in ps_deaths if death <= at]
                kept = [s for seen, s in self.saved if deaths and seen < deaths[-1] - 1.0]
                if not deaths:
                    yield f"the step fell from {before:,} to {step:,} though no ps had died"
                elif kept and step < kept[-1]:
                    yield f"the step fell to {step:,}, below the checkpoint of {kept[-1]:,}"
            before = step

    def _counts(self) -> Iterator[str]:
        """Only played env steps are counted, and no game is reported twice.

        Without a ledger there is nothing to compare with.
        """
        played = faulty_envs.played(self.cluster.ledger)
        if not played.steps:
            return
        steps = max((int(row["env_steps"]) for row in self._rows("worker-0")), default=0)
        if steps > played.steps:
            yield f"{steps:,} env steps are counted, {played.steps:,} were played"
        reports = sum("return" in row for row in self._rows("episodes"))
        if reports > played.games:
            yield f"{reports:,} games are reported, {played.games:,} were begun"

    def _growth(self) -> Iterator[str]:
        """Memory, files and threads don't grow in any process that lives long enough to measure."""
        for (name, pid), samples in self.lives.items():
            settled = [s for s in samples if s.at - samples[0].at > WARM_UP_S]
            if not settled or samples[-1].at - samples[0].at < SHORTEST_LIFE_S:
                continue
            slope = slope_per_min(settled)
            if slope > GROWTH_MB_PER_MIN:
                yield f"{name} (pid {pid}) grows by {slope:.1f} MB a minute"
            for what in ("files", "threads"):
                values = [getattr(sample, what) for sample in settled]
                if min(values[-5:]) > values[0] + GROWN_FILES:
                    yield f"{name} (pid {pid}) went from {values[0]} to {values[-1]} {what}"

    def _rows(self, name: str) -> list[Row]:
        """All rows of a process, rolled-back ones too; a crash may have left partial lines."""
        return last_rows(self.cluster.run.metrics(name), sys.maxsize)

    def _learned(self, goal: float) -> Iterator[str]:
        best = self.best()
        if best is None or best < goal:
            yield f"the mean return of 100 games got to {best} only, not to {goal:g}"

    def best(self) -> float | None:
        """The best mean return of 100 games in the cluster, None if no game ended."""
        name = "cluster/mean_return_100"
        means = [row[name] for row in self._rows("worker-0") if name in row]
        return max(means, default=None)

    def steepest(self) -> float:
        """The largest memory growth of a long-lived process in MB a minute."""
        lives = [s for s in self.lives.values() if s[-1].at - s[0].at >= SHORTEST_LIFE_S]
        settled = [[x for x in s if x.at - s[0].at > WARM_UP_S] for s in lives]
        return max((slope_per_min(s) for s in settled if s), default=0.0)


def slope_per_min(samples: list[Sample]) -> float:
    """MB a minute by least squares."""
    times = np.array([sample.at for sample in samples])
    if np.ptp(times) == 0:
        return 0.0
    return float(np.polyfit(times - times[0], [s.rss_mb for s in samples], 1)[0] * 60)


def left_over(path: Path) -> Iterator[str]:
    """Processes that still have the run's directory in their command line."""
    for process in psutil.process_iter(["pid", "cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(path) in command:
            yield f"{process.info['pid']} {command[:80]}"
