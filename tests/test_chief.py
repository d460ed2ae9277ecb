"""What the chief makes of the reports of all workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from a3c.chief import Chief
from a3c.exchange import Reply
from a3c.past import Life
from a3c.store import Snapshot
from tests.clusters import config
from tests.runs import manifest

REPLY = Reply(np.zeros(1), np.zeros(1), 1000, 10, finished=False, stepped=True)


class ReportingStore:
    """A ps with reports in its queue, which other workers have left."""

    def __init__(self) -> None:
        self.reports: list[float] = []

    def drain(self) -> np.ndarray:
        """All that is in the queue: worker, return, length, env step."""
        rows = [[1.0, episode_return, 10.0, 1000.0] for episode_return in self.reports]
        self.reports = []
        return np.array(rows, np.float64).reshape(-1, 4)

    def finish(self, reason: str) -> None:
        """Nobody is told."""

    def attached(self) -> np.ndarray:
        """The chief alone."""
        return np.array([1])

    def snapshot(self) -> Snapshot:
        """The counts, which every checkpoint has."""
        return Snapshot({"global_step": np.array(1000), "num_updates": np.array(10)}, 0, 0)


def test_the_mean_that_solved_a_run_is_not_changed_by_games_that_end_after_it(
    tmp_path: Path,
) -> None:
    store: Any = ReportingStore()
    chief = Chief(store, config(stop_at_return=50.0), tmp_path, REPLY, None, Life(1, 0))
    store.reports = [51.0] * 100
    chief._drained = 0.0
    assert chief.tick(REPLY) == "solved"
    store.reports = [1.0] * 10
    chief.end_run("solved")
    last = manifest(tmp_path)
    assert (last.reason, last.mean_return_100, last.episodes) == ("solved", 51.0, 110)
