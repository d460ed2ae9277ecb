"""The cluster's mean return over a whole run, read incrementally."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a3c.run.rows import Follower, Row, parse_row, sampled_rows

_KEY = "cluster/mean_return_100"
_FIRST_POINTS = 240
_MAX_POINTS = 2000


class Point(NamedTuple):
    """The mean return of the last 100 games at one moment."""

    env_steps: int
    time: float
    value: float


class Curve:
    """Points of the curve, oldest first, thinned out to at most `_MAX_POINTS`."""

    def __init__(self, path: Path) -> None:
        self.points: list[Point] = []
        rows, size = sampled_rows(path, _FIRST_POINTS, _KEY)
        for row in rows:
            self._add(row)
        self._follower = Follower(path, size)

    def update(self) -> None:
        """Add the rows that the chief wrote since the last update."""
        for line in self._follower.lines():
            row = parse_row(line)
            if row is not None:
                self._add(row)
        if len(self.points) > _MAX_POINTS:
            self.points[:-1] = self.points[:-1:2]

    def _add(self, row: Row) -> None:
        """Add a point; after a rollback, first remove the points of later env steps."""
        steps, value, at = row.get("env_steps"), row.get(_KEY), row.get("time")
        if not (isinstance(steps, int) and isinstance(at, int | float)):
            return
        while self.points and self.points[-1].env_steps > steps:
            self.points.pop()
        if isinstance(value, int | float):
            self.points.append(Point(steps, float(at), float(value)))


def resample(points: Sequence[Point], count: int) -> list[float]:
    """The value at `count` positions evenly over the env steps, interpolated between points."""
    if not points:
        return []
    first, last = points[0].env_steps, points[-1].env_steps
    if first == last or count == 1:
        return [points[-1].value] * count
    values, index = [], 0
    for place in range(count):
        at = first + (last - first) * place / (count - 1)
        while index + 1 < len(points) - 1 and points[index + 1].env_steps <= at:
            index += 1
        left, right = points[index], points[index + 1]
        width = max(1, right.env_steps - left.env_steps)
        share = min(1.0, max(0.0, (at - left.env_steps) / width))
        values.append(left.value + share * (right.value - left.value))
    return values


def trend(points: Sequence[Point]) -> float | None:
    """The slope per second, by least squares over the last third; None with too few points."""
    recent = points[-max(8, len(points) // 3) :]
    if len(recent) < 8:
        return None
    mean_time = sum(p.time for p in recent) / len(recent)
    mean_value = sum(p.value for p in recent) / len(recent)
    spread = sum((p.time - mean_time) ** 2 for p in recent)
    if spread <= 0.0:
        return None
    return sum((p.time - mean_time) * (p.value - mean_value) for p in recent) / spread
