"""Read rows of metrics, and recover from them what earlier processes knew: step, games, returns.

Metrics files grow for days. The dashboard reads them every second, so it must not read them whole.

A restarted ps begins at the env step that it was restored to. Every start of the ps has a number.
The rows of workers and of games hold it as `ps_life`.
"""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from a3c.process.console import count
from a3c.run.checkpoint import Manifest

Row = dict[str, Any]
T = TypeVar("T")

WINDOW_BYTES = 1 << 16  # of the episodes' file: holds the last 100 games
_WORDS = ("state", "event")


def parse_row(line: bytes) -> Row | None:
    """The numbers (below 2^63) and texts (of `_WORDS`) in a line of JSON; None if it is no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return {
        sys.intern(key): value  # one string for all rows
        for key, value in row.items()
        if (isinstance(value, str) and key in _WORDS)
        or (isinstance(value, int) and -(2**63) < value < 2**63)
        or (isinstance(value, float) and math.isfinite(value))
    }


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, without rolled-back steps; damaged lines are skipped."""
    return read_table(path)[0]


def read_table(path: Path) -> tuple[list[Row], int]:
    """The rows as `read_rows` gives them, and the number of damaged lines that were skipped."""
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    rows = _rows_in(lines)
    return without_rolled_back(rows), len(lines) - len(rows)


def _rows_in(lines: Iterable[bytes]) -> list[Row]:
    return [row for row in map(parse_row, lines) if row and type(row.get("env_steps")) is int]


def without_rolled_back(rows: Iterable[Row]) -> list[Row]:
    """The rows without those that a later mark of a rollback discards."""
    kept: list[Row] = []
    for row in rows:
        if row.get("event") == "attached":  # check all rows: games may be slightly out of order
            kept = [earlier for earlier in kept if earlier["env_steps"] <= row["env_steps"]]
        else:
            kept.append(row)
    return kept


def last_rows(path: Path, num_bytes: int = 1 << 14) -> list[Row]:
    """The rows in the last bytes of a file, oldest first; empty if it can't be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for most in (num_bytes, 1 << 22):  # with many metrics of info even one row is longer
            start = max(0, size - most)
            file.seek(start)
            lines = file.read().splitlines()
            if rows := _rows_in(lines[1:] if start else lines):
                return rows
    return []


def latest(metrics: Path) -> dict[str, Row]:
    tails = {path.stem: last_rows(path) for path in metrics.glob("worker-*.jsonl")}
    return {name: tail[-1] for name, tail in tails.items() if tail}


class Cache:
    """Caches the parsed contents of each file until the file changes."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def get(self, parse: Callable[[Path], T | None], path: Path) -> T | None:
        """The parsed contents of the file now; None if it can't be read."""
        try:
            stat = path.stat()
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if path not in self._known or self._known[path][0] != signature:
                self._known[path] = (signature, parse(path))
        except OSError:  # missing, a directory, or not readable
            self._known.pop(path, None)
            return None
        return self._known[path][1]


class LineFollower:
    """Reads the lines appended to a file since the last call; starts over if it was truncated."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def lines(self) -> Iterator[bytes]:
        """The new complete lines; an incomplete line is returned once it is complete."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                yield line[:-1]


class PsStart(NamedTuple):
    """A start of the ps: a random number drawn at its initialisation, and its first env step."""

    number: int
    origin: int


class ChiefState(NamedTuple):
    """The chief's state that isn't in the variables."""

    wall_s: float = 0.0
    episodes: int = 0
    returns: tuple[float, ...] = ()
    is_fresh: bool = True  # from the newest checkpoint or the start, not from a chief's files


def restart_point(path: Path, ps_start: PsStart, env_steps: int) -> int:
    """The env step after which the rows of a file were rolled back."""
    # After a new start other workers may be far ahead, so the step at which the ps began counts.
    is_same = any(row.get("ps_life") == ps_start.number for row in last_rows(path)[-1:])
    return env_steps if is_same else ps_start.origin


def newest_step(latest: Mapping[str, Row], since: float = 0.0) -> int | None:
    """The last env step since the newest start of the ps, by the latest row of each worker.

    None if there is no row, or none from `since` on, in seconds since 1970.
    """
    # The newest start is that of the chief's latest row; clocks of several hosts may disagree.
    ps_start = latest.get("worker-0", {}).get("ps_life")
    rows = [row for row in latest.values() if row.get("ps_life") == ps_start]
    rows = [row for row in rows if row.get("time", 0.0) >= since]
    steps = [row[key] for row in rows for key in ("env_steps", "now") if key in row]
    return max(map(int, steps), default=None)


def rollback_message(before: int, now: int) -> str:
    return f"went back from env step {before:,} to {now:,}: {count(before - now, 'env step')} lost"


def rollback_messages(rows: Iterable[Row | None], since: float = 0.0) -> tuple[str, ...]:
    """The messages for the rollbacks in rows of `metrics/losses.jsonl`."""
    return tuple(
        rollback_message(row["from"], row["env_steps"])
        for row in rows
        if row
        and type(row.get("from")) is type(row.get("env_steps")) is int
        and row.get("time", 0.0) >= since
    )


def chief_state(metrics: Path, manifest: Manifest | None, ps_start: PsStart) -> ChiefState:
    """The chief's state: from its files since the same start of the ps, else from `manifest`."""
    saved = ChiefState()
    if manifest is not None:
        saved = ChiefState(manifest.wall_s, manifest.episodes, tuple(manifest.recent_returns))
    rows = last_rows(metrics / "worker-0.jsonl")
    if not rows or rows[-1].get("ps_life") != ps_start.number:
        return saved
    times = [row["wall_s"] for row in rows if "wall_s" in row]
    games = last_rows(metrics / "episodes.jsonl", WINDOW_BYTES)
    return ChiefState(
        wall_s=max([saved.wall_s, *times[-1:]]),
        episodes=max([saved.episodes, *(row.get("episodes", 0) for row in games[-1:])]),
        returns=tuple(row["return"] for row in without_rolled_back(games) if "return" in row),
        is_fresh=False,
    )
