"""Recover from a run's files what earlier processes knew: the env step, episodes, returns.

A restarted ps begins a new life at the env step that it was restored to. Every worker writes a mark
in its metrics when it attaches to the ps, with the number of that life.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from a3c.process.console import count
from a3c.run.checkpoint import Manifest
from a3c.run.rows import Row, last_rows, parse_row, without_rolled_back

WINDOW_BYTES = 1 << 16  # of the episodes' file: holds the last 100 games
_MARK = b'"event": "attached"'


class Life(NamedTuple):
    """One life of the ps: a random number drawn at its initialisation, and its first env step."""

    number: int
    origin: int


class Memory(NamedTuple):
    """The chief's state that isn't in the variables."""

    wall_s: float = 0.0
    episodes: int = 0
    returns: tuple[float, ...] = ()
    is_fresh: bool = True  # from the newest checkpoint or the start, not from a chief's files


class Attached(NamedTuple):
    """A mark in a metrics file: a worker attached to the ps."""

    env_steps: int
    life: int | None
    episodes: int
    end: int  # byte offset just after the mark


def last_attached(path: Path) -> Attached | None:
    """The last mark in a metrics file, searched from the end."""
    with (
        contextlib.suppress(OSError, ValueError),  # ValueError: the file is empty
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        found = data.rfind(_MARK)
        while found >= 0:
            start, end = data.rfind(b"\n", 0, found) + 1, data.find(b"\n", found)
            row = (parse_row(data[start:end]) if end >= 0 else None) or {}
            if row.get("event") == "attached" and type(row.get("env_steps")) is int:
                step, life, games = row["env_steps"], row.get("ps_life"), row.get("episodes", 0)
                return Attached(step, life, games, end + 1)
            found = data.rfind(_MARK, 0, found)
    return None


def restart_point(path: Path, life: Life, env_steps: int) -> int:
    """The env step after which the rows of a file were rolled back.

    A worker that returns to the same life has lost nothing. In a new life other workers may be far
    ahead, so the step at which that life began counts.
    """
    mark = last_attached(path)
    return env_steps if mark and mark.life == life.number else life.origin


def newest_step(metrics: Path) -> int | None:
    """The last env step that any worker recorded in the ps's last life; None if there is none."""
    chief = last_attached(metrics / "worker-0.jsonl")
    if chief is None:
        return None
    steps = [chief.env_steps]
    for path in metrics.glob("worker-*.jsonl"):
        mark = last_attached(path)
        if mark and mark.life == chief.life:
            rows = last_rows(path)
            steps += [row["env_steps"] for row in rows[-1:] if type(row.get("env_steps")) is int]
    return max(steps)


def loss(before: int, now: int) -> str:
    return f"went back from env step {before:,} to {now:,}: {count(before - now, 'env step')} lost"


def losses(rows: Iterable[Row | None], since: float = 0.0) -> tuple[str, ...]:
    """The messages for the losses in rows of `metrics/losses.jsonl`."""
    return tuple(
        loss(row["from"], row["env_steps"])
        for row in rows
        if row
        and type(row.get("from")) is type(row.get("env_steps")) is int
        and row.get("time", 0.0) >= since
    )


def remember(metrics: Path, manifest: Manifest | None, life: Life) -> Memory:
    """The chief's state: from its files in the same life of the ps, else from `manifest`."""
    saved = Memory()
    if manifest is not None:
        saved = Memory(manifest.wall_s, manifest.episodes, tuple(manifest.recent_returns))
    chief = metrics / "worker-0.jsonl"
    mark = last_attached(chief)
    if mark is None or mark.life != life.number:
        return saved
    times = [row["wall_s"] for row in last_rows(chief) if "wall_s" in row]
    known = saved._replace(wall_s=max([saved.wall_s, *times[-1:]]), is_fresh=False)
    reports = metrics / "episodes.jsonl"
    mark = last_attached(reports)
    if mark is None:
        return known
    with reports.open("rb") as file:
        file.seek(mark.end)
        num_reports = sum(1 for line in file if b'"worker"' in line)
    games = without_rolled_back(last_rows(reports, WINDOW_BYTES))
    return known._replace(
        episodes=max(saved.episodes, mark.episodes + num_reports),
        returns=tuple(float(row["return"]) for row in games if "return" in row),
    )
