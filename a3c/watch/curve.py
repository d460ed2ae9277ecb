"""The mean return over a run, read as it grows, and the time that it may still take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a3c.run.rows import Follower, parse_row
from a3c.watch.snapshot import RUNNING, Status, duration

_FIRST_POINTS = 240  # of a file that is larger than
_WHOLE_BYTES = 1 << 20
_MAX_POINTS = 2000
_MEAN_RETURN = "cluster/mean_return_100"
_FAR_S = 100 * 3600.0


class Point(NamedTuple):
    env_steps: int
    time: float
    value: float  # the mean return of the last 100 games


class Curve:
    """The cluster's mean return over a whole run, oldest first, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.points: list[Point] = []
        self._follower = Follower(path)
        size = path.stat().st_size if path.exists() else 0
        self.update(spacing=size // _FIRST_POINTS if size > _WHOLE_BYTES else 0)

    def update(self, spacing: int = 0) -> None:
        """Add the new rows; with `spacing`, only a row every so many bytes, and all rollbacks.

        A rollback removes the points of later env steps.
        """
        due = read = 0
        for line in self._follower.lines():
            read += len(line)
            if read < due and b'"event"' not in line:
                continue
            due, row = read + spacing, parse_row(line) or {}
            steps, value, at = row.get("env_steps"), row.get(_MEAN_RETURN), row.get("time")
            if isinstance(steps, int) and isinstance(at, int | float):
                while self.points and self.points[-1].env_steps > steps:
                    self.points.pop()
                if isinstance(value, int | float):
                    self.points.append(Point(steps, float(at), float(value)))
        if len(self.points) > _MAX_POINTS:
            self.points[:-1] = self.points[:-1:2]


def seconds_to_goal(goal: float, mean: float, points: Sequence[Point]) -> float | None:
    """The seconds until the goal, by the trend of the last third; None if it leads nowhere."""
    recent = points[-max(8, len(points) // 3) :]
    times = [p.time for p in recent]
    if len(recent) < 8 or min(times) == max(times):
        return None
    slope = statistics.linear_regression(times, [p.value for p in recent]).slope
    seconds = (goal - mean) / slope if slope > 0 else _FAR_S
    return seconds if seconds < _FAR_S else None


def seconds_to_end(status: Status) -> float | None:
    """The seconds until `--max-env-steps` or `--max-wall-time`; None if they aren't known."""
    if status.state != RUNNING or not status.env_steps_per_s:
        return None
    seconds = (status.max_env_steps - status.global_step) / status.env_steps_per_s
    if status.max_wall_time_s is not None:
        seconds = min(seconds, max(0.0, status.max_wall_time_s - (status.wall_s or 0.0)))
    return seconds if 0 <= seconds < 100 * _FAR_S else None


def roughly(seconds: float) -> str:
    """A duration that is only an estimate."""
    step = 5 if seconds < 60 else 60 if seconds < 3600 else 600
    return duration(max(step, round(seconds / step) * step))


def time_left(status: Status, points: Sequence[Point]) -> str:
    """How long a run may still take: to its goal by the trend, else to its last env step."""
    goal, mean = status.stop_at_return, status.mean_return_100
    if status.state == RUNNING and goal is not None and mean is not None and mean < goal:
        seconds = seconds_to_goal(goal, mean, points)
        if seconds is not None:
            return f"goal in about {roughly(seconds)}"
    end = seconds_to_end(status)
    return "" if end is None else f"about {roughly(end)} left at most"
