"""The status of a run at one moment, as a value and as text, and its mean return as it grows."""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from a3c.process.console import count, format_mean, table
from a3c.process.process_records import ENDED_STATES, LastExit
from a3c.run.rows import LineFollower, parse_row

LIVE_STATES = ("starting", "running", "restarting")


@dataclass(frozen=True)
class ProcessStatus:
    """One process of a run.

    `state` is that in the keeper's record (starting, running, restarting, done, failed, stopped),
    "dead", "waiting" before the keeper starts, or "elsewhere" if `keep` supervises it on another
    host and its record isn't here. `pid` is None unless that process is running.
    """

    name: str
    role: str
    task: int
    state: str
    pid: int | None = None
    keeper_pid: int | None = None
    restarts: int = 0
    address: str = ""
    host: str = ""
    log: str = ""
    uptime_s: float | None = None
    heartbeat_age_s: float | None = None
    env_steps_per_s: float | None = None
    episodes: int | None = None
    cpu_percent: float | None = None  # of one core
    memory_mb: float | None = None
    memory_kind: str | None = None  # pss or rss
    last_exit: LastExit | None = None
    last_line: str | None = None
    cut_off_s: float | None = None  # since the connection to its host was lost

    @property
    def is_live(self) -> bool:
        """Whether a keeper supervises the process."""
        return self.state in LIVE_STATES


@dataclass(frozen=True)
class CheckpointStatus:
    """The newest checkpoint; its files are not verified here."""

    path: str
    step: int
    age_s: float


@dataclass(frozen=True)
class Status:
    """The status of a run at one moment; values without a current measurement are None."""

    run: str
    run_dir: str
    state: str  # starting, running, done, failed, stopped
    solved: bool
    env_id: str
    workers: int
    envs_per_worker: int
    global_step: int
    max_env_steps: int
    mean_return_100: float | None
    stop_at_return: float | None
    env_steps_per_s: float | None
    frames_per_s: float | None  # None if the game has no frames
    updates_per_s: float | None
    staleness: float | None  # steps of the optimizer
    exchange_share: float | None  # share of the workers' time spent waiting for the ps
    episodes: int | None
    wall_s: float | None
    processes: tuple[ProcessStatus, ...]
    checkpoint: CheckpointStatus | None
    checkpoint_interval_s: float
    since_start_s: float  # since the run was last started or resumed
    metrics_age_s: float | None  # since the chief's last row
    metrics_interval_s: float
    dropped_rollouts: int
    dropped_reports: int
    failed_saves: int = 0  # in a row
    losses: tuple[str, ...] = ()  # env steps lost by rollbacks since the last start or resume
    exposed: tuple[str, ...] = ()  # servers that others can reach, "ps-0 *:4000"
    is_isolated: bool | None = None  # the processes' network has only loopback; None if none runs
    damaged: tuple[str, ...] = ()  # files that can't be read, "processes/ps-0.json"
    tensorboard: str | None = None  # its address while it runs
    disk_trouble: str | None = None
    warnings: tuple[str, ...] = ()
    max_wall_time_s: float | None = None  # of training

    def as_dict(self) -> dict[str, Any]:
        """The status as plain data for JSON, with floats rounded to 3 decimals."""
        text = json.dumps(dataclasses.asdict(self))
        return json.loads(text, parse_float=lambda digits: round(float(digits), 3))

    @property
    def word(self) -> str:
        return "solved" if self.solved else self.state

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES


NOTHING = "-"


def duration(seconds: float | None) -> str:
    """A time span in at most two units: 8 s, 3 min 20 s, 2 h 5 min, 4 d 1 h."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, unit), (smaller, small_unit) in itertools.pairwise(units):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def rate(value: float | None) -> str:
    """A rate with at least three digits: 0.84, 71.3, 1,150."""
    if value is None:
        return NOTHING
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f}"


def score(value: float | None, mark: float | None = None) -> str:
    """A return, with one decimal below 10,000, and more if a mark beside it needs them."""
    if value is None:
        return NOTHING
    if abs(value) >= 10_000 and (mark is None or (round(value) >= mark) == (value >= mark)):
        return f"{value:,.0f}"
    return format_mean(value, mark)


def memory(process: ProcessStatus) -> str:
    """The memory of a process; RSS includes shared memory, so it is an upper bound."""
    if process.memory_mb is None:
        return NOTHING
    bound = "≤ " if process.memory_kind == "rss" else ""
    return f"{bound}{process.memory_mb:,.0f} MB"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} %"


def printable(text: str) -> str:
    """The text with control characters replaced by `?`."""
    return "".join(c if c.isprintable() else "?" for c in text)


CELLS: dict[str, Callable[[ProcessStatus], str]] = {  # of a process, by title
    "process": lambda p: printable(p.name),
    "host": lambda p: printable(p.host) or NOTHING,
    "state": lambda p: p.state,
    "pid": lambda p: NOTHING if p.pid is None else str(p.pid),
    "restarts": lambda p: str(p.restarts),
    "CPU": lambda p: percent(p.cpu_percent),
    "memory": memory,
    "steps/s": lambda p: rate(p.env_steps_per_s),
    "games": lambda p: NOTHING if p.episodes is None else f"{p.episodes:,}",
    "heartbeat": lambda p: duration(p.heartbeat_age_s),
    "up for": lambda p: duration(p.uptime_s),
    "address": lambda p: printable(p.address),
}
_LISTED = [title for title in CELLS if title not in ("up for", "address")]


def lines(status: Status) -> list[str]:
    trained = f", {duration(status.wall_s)} of training" if status.wall_s else ""
    share = 100 * status.global_step / status.max_env_steps
    steps = f"{status.global_step:,} of {status.max_env_steps:,} ({share:.0f} %)"
    if status.solved and status.checkpoint:
        steps += f", solved by the weights of {status.checkpoint.step:,}"
    if status.env_steps_per_s is not None:
        steps += f", {rate(status.env_steps_per_s)}/s"
    if status.frames_per_s is not None:
        steps += f", {rate(status.frames_per_s)} frames/s"
    mean = score(status.mean_return_100, status.stop_at_return)
    if status.stop_at_return is not None:
        mean += f", goal {score(status.stop_at_return, status.stop_at_return)}"
    if status.episodes is not None:
        until = "by then" if status.solved else "so far"
        mean += f" ({count(status.episodes, 'game')} {until})"
    facts = {"env steps": steps, "mean return": mean}
    if status.updates_per_s is not None:
        facts["updates"] = f"{rate(status.updates_per_s)}/s, staleness {rate(status.staleness)}"
    newest = status.checkpoint
    words = f"{printable(newest.path)}, {duration(newest.age_s)} old" if newest else "none yet"
    facts["checkpoint"] = words
    if status.tensorboard:
        facts["TensorBoard"] = printable(status.tensorboard)
    several = len({p.host for p in status.processes if p.host}) > 1
    titles = [title for title in _LISTED if several or title != "host"]
    rows = [titles, *([CELLS[title](p) for title in titles] for p in status.processes)]
    shown = [
        f"{printable(status.run)}: {status.word}{trained} ({printable(status.env_id)})",
        *(f"  {label:<13}{text}" for label, text in facts.items()),
        "",
        *(f"  {line}" for line in table(rows, num_left=titles.index("state") + 1)),
    ]
    if status.warnings:
        shown += ["", *(f"  ! {line}" for line in status.warnings)]
    return shown


_LONGEST_S = 100 * 3600.0  # a longer time until the goal isn't shown
_START_S = 120.0  # in which workers begin one after the other


class Point(NamedTuple):
    env_steps: int
    wall_s: float  # of training: without the time between a stop and a resume
    value: float  # the mean return of the last 100 games


class Curve:
    """The cluster's mean return over a whole run, oldest first, read incrementally.

    The points are every n-th row (`_every`) and the newest one.
    """

    def __init__(self, path: Path) -> None:
        self.points: list[Point] = []
        self._every, self._since = 1, 0  # n, and the rows since the last n-th one
        self._follower = LineFollower(path)
        self.update()

    def update(self) -> None:
        """Add the new rows; a rollback removes the points of later env steps."""
        for line in self._follower.lines():
            row = parse_row(line) or {}
            steps, wall_s = row.get("env_steps"), row.get("wall_s")
            if isinstance(steps, int):
                while self.points and self.points[-1].env_steps > steps:
                    self.points.pop()
                    self._since = 0
                if wall_s is not None and "cluster/mean_return_100" in row:
                    if self._since:
                        self.points.pop()
                    self._since = (self._since + 1) % self._every
                    self.points.append(Point(steps, wall_s, row["cluster/mean_return_100"]))
            if len(self.points) > 2000 and not self._since:
                del self.points[1::2]
                self._every *= 2


def seconds_to_goal(goal: float, mean: float, points: Sequence[Point]) -> float | None:
    """The seconds until the goal, by the trend of the last third; None if unknown or too long."""
    recent = points[-max(8, len(points) // 3) :]
    times = [p.wall_s for p in recent]
    if len(recent) < 8 or min(times) == max(times):
        return None
    slope = statistics.linear_regression(times, [p.value for p in recent]).slope
    seconds = (goal - mean) / slope if slope > 0 else _LONGEST_S
    return seconds if seconds < _LONGEST_S else None


def seconds_to_end(status: Status) -> float | None:
    """The seconds until `--max-env-steps` or `--max-wall-time`; None if they aren't known."""
    if status.state != "running" or not status.env_steps_per_s:
        return None
    if any(p.state == "starting" for p in status.processes):  # then the rate is still too low
        return None
    per_s = status.env_steps_per_s
    if status.wall_s and status.since_start_s < _START_S:  # the newest rate may be of few workers
        per_s = max(per_s, status.global_step / status.wall_s)
    seconds = (status.max_env_steps - status.global_step) / per_s
    if status.max_wall_time_s is not None:
        seconds = min(seconds, max(0.0, status.max_wall_time_s - (status.wall_s or 0.0)))
    return seconds if 0 <= seconds < 100 * _LONGEST_S else None


def fresh_s(interval_s: float) -> float:
    """The age up to which the newest row of metrics counts as current, by the rows' interval."""
    return max(15.0, 5 * interval_s)


def roughly(seconds: float) -> str:
    """A duration as text, rounded because it is only an estimate."""
    step = 5 if seconds < 60 else 60 if seconds < 3600 else 600
    return duration(max(step, round(seconds / step) * step))


def one_line(status: Status, points: Sequence[Point]) -> str:
    """The state in one line, with the time left: to the goal by the trend, else to the end."""
    goal, mean = status.stop_at_return, status.mean_return_100
    left = ""
    if (seconds := seconds_to_end(status)) is not None:
        left = f", about {roughly(seconds)} left at most"
    if status.state == "running" and goal is not None and mean is not None and mean < goal:
        seconds = seconds_to_goal(goal, mean, points)
        if seconds is not None:
            left = f", goal in about {roughly(seconds)}"
    wanted = "" if goal is None else f" of {score(goal, goal)}"
    steps = f"{duration(status.wall_s):>12}  {status.global_step:>13,} env steps"
    speed, reached = f"{rate(status.env_steps_per_s):>7}/s", f"mean return {score(mean, goal)}"
    return f"{steps}  {speed}  {reached}{wanted}  {status.state}{left}"
