"""Whether a run is solved, and whether it collapsed, by the returns of its games."""

import collections
import math
import statistics
from collections.abc import Iterable

from a3c.run.metrics import WINDOW


class Judge:
    """Follows the mean return of the last games of all workers."""

    def __init__(self, mark: float | None, window: int = WINDOW) -> None:
        self._mark = mark
        self._returns: collections.deque[float] = collections.deque(maxlen=window)
        self._start: float | None = None
        self._best = -math.inf
        self.collapsed = False

    @property
    def mean(self) -> float | None:
        """The mean, or None before `window` games have ended."""
        is_full = len(self._returns) == self._returns.maxlen
        return statistics.fmean(self._returns) if is_full else None

    def add(self, returns: Iterable[float]) -> bool:
        """Add returns of games that ended; returns whether the run is solved.

        Progress counts from the first window's mean. A run has collapsed if its mean first
        gets at least half of the way from there to the mark, and later falls below half of the way
        from there to its best.
        """
        solved = False
        for value in returns:
            self._returns.append(value)
            mean = self.mean
            if mean is None or self._mark is None:
                continue
            self._start = mean if self._start is None else self._start
            self._best = max(self._best, mean)
            was_far = self._best - self._start >= 0.5 * (self._mark - self._start)
            self.collapsed |= was_far and mean - self._start < 0.5 * (self._best - self._start)
            solved |= mean >= self._mark
        return solved
