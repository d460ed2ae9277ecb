"""What a run's own files say about the time before this process: where it was, what it knew.

Every worker marks in its metrics when it attaches to the ps, and to which life of it: a ps that was
restarted begins a new life at the env step that it was restored to. The marks tell rows of a past
that was lost from those that still count, and give a chief that was killed its memory back.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from a3c.process.console import count
from a3c.run.checkpoint import Manifest
from a3c.run.rows import last_rows, parse_row

WINDOW_BYTES = 1 << 16
_MARK = b'"event": "attached"'


class Life(NamedTuple):
    """One life of the ps: a number drawn when it was initialised, and the env step it began at."""

    number: int
    origin: int


class Memory(NamedTuple):
    """What the chief knows beside the variables."""

    wall_s: float = 0.0
    episodes: int = 0
    returns: tuple[float, ...] = ()
    is_fresh: bool = True  # as of the newest checkpoint, or of the beginning


class Attached(NamedTuple):
    """A mark in a file of metrics."""

    env_steps: int
    life: int | None
    episodes: int
    end: int  # the offset of what follows it


def last_attached(path: Path) -> Attached | None:
    """The last mark in a file of metrics, found without reading the rest."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = data.rfind(_MARK)
            while found >= 0:
                start, end = data.rfind(b"\n", 0, found) + 1, data.find(b"\n", found)
                mark = _parse_mark(data[start:end], end + 1) if end >= 0 else None
                if mark:
                    return mark
                found = data.rfind(_MARK, 0, found)
    except (OSError, ValueError):  # ValueError: it is empty
        pass
    return None


def _parse_mark(line: bytes, end: int) -> Attached | None:
    row = parse_row(line)
    if row is None or row.get("event") != "attached" or type(row.get("env_steps")) is not int:
        return None
    life, episodes = row.get("ps_life"), row.get("episodes")
    return Attached(
        row["env_steps"],
        life if type(life) is int else None,
        episodes if type(episodes) is int else 0,
        end,
    )


def restart_point(path: Path, life: Life, env_steps: int) -> int:
    """The env step beyond which the rows of a file are of a past that was lost.

    A worker that comes back to the life that it knew has lost nothing. In a new life others may be
    far ahead already: what counts is where that life began.
    """
    mark = last_attached(path)
    return env_steps if mark and mark.life == life.number else life.origin


def newest_step(metrics: Path) -> int | None:
    """The last env step that a worker knew of in the ps's last life; None where there was none."""
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
    """What going back from env step `before` to `now` costs, in words."""
    return f"went back from env step {before:,} to {now:,}: {count(before - now, 'env step')} lost"


def losses(rows: Iterable[dict[str, Any] | None], since: float = 0.0) -> tuple[str, ...]:
    """The losses in rows of `metrics/losses.jsonl`, in words."""
    return tuple(
        loss(row["from"], row["env_steps"])
        for row in rows
        if row
        and type(row.get("from")) is type(row.get("env_steps")) is int
        and row.get("time", 0.0) >= since
    )


def remember(metrics: Path, manifest: Manifest | None, life: Life) -> Memory:
    """What the chief knew: by its files where it is back in the same life, else by `manifest`."""
    mark = last_attached(metrics / "worker-0.jsonl")
    if mark and mark.life == life.number:
        return _from_files(metrics, manifest)
    return _from_manifest(manifest)


def _from_manifest(manifest: Manifest | None) -> Memory:
    if manifest is None:
        return Memory()
    return Memory(manifest.wall_s, manifest.episodes, tuple(manifest.recent_returns))


def _from_files(metrics: Path, manifest: Manifest | None) -> Memory:
    saved = _from_manifest(manifest)
    times = [
        row["wall_s"]
        for row in last_rows(metrics / "worker-0.jsonl")
        if isinstance(row.get("wall_s"), int | float)
    ]
    reports = metrics / "episodes.jsonl"
    mark = last_attached(reports)
    if mark is None:
        return saved._replace(wall_s=max([saved.wall_s, *times[-1:]]), is_fresh=False)
    with reports.open("rb") as file:
        file.seek(mark.end)
        num_reports = sum(1 for line in file if b'"worker"' in line)
    return Memory(
        wall_s=max([saved.wall_s, *times[-1:]]),
        episodes=max(saved.episodes, mark.episodes + num_reports),
        returns=_recent_returns(reports),
        is_fresh=False,
    )


def _recent_returns(reports: Path) -> tuple[float, ...]:
    """Returns in the last bytes of the reports, without those of a past that was lost."""
    rows: list[dict[str, Any]] = []
    for row in last_rows(reports, WINDOW_BYTES):
        if row.get("event") == "attached":
            rows = [r for r in rows if r["env_steps"] <= row["env_steps"]]
        elif type(row.get("env_steps")) is int and isinstance(row.get("return"), int | float):
            rows.append(row)
    return tuple(float(row["return"]) for row in rows)
