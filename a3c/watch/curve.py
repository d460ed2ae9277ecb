"""The mean return over a run, read as it grows, and the time that it may still take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a3c.run.rows import Follower, parse_row
from a3c.watch.snapshot import RUNNING, Status, duration, rate, score

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
        self.update()

    def update(self) -> None:
        """Add the new rows; a rollback removes the points of later env steps."""
        for line in self._follower.lines():
            row = parse_row(line) or {}
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


def one_line(status: Status, points: Sequence[Point]) -> str:
    """The state in one line, with the time left: to the goal by the trend, else to the end."""
    goal, mean = status.stop_at_return, status.mean_return_100
    left = ""
    if (seconds := seconds_to_end(status)) is not None:
        left = f", about {roughly(seconds)} left at most"
    if status.state == RUNNING and goal is not None and mean is not None and mean < goal:
        seconds = seconds_to_goal(goal, mean, points)
        if seconds is not None:
            left = f", goal in about {roughly(seconds)}"
    wanted = "" if goal is None else f" of {score(goal, goal)}"
    return (
        f"{duration(status.wall_s):>12}  {status.global_step:>13,} env steps"
        f"  {rate(status.env_steps_per_s):>7}/s"
        f"  mean return {score(mean, goal)}{wanted}  {status.state}{left}"
    )
