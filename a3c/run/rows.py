"""Read rows of metrics: a whole file, its end, a sample of it, or lines as they are appended.

Metrics files grow for days. The dashboard reads them every second, so it must not read them whole.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
T = TypeVar("T")

TAIL_BYTES = 1 << 14
_MAX_NUMBER = 1 << 63
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
        key: value
        for key, value in row.items()
        if (isinstance(value, str) and key in _WORDS)
        or (isinstance(value, int | float) and -_MAX_NUMBER < value < _MAX_NUMBER)  # no NaN
    }


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, without rolled-back steps; damaged lines are skipped."""
    return read_table(path)[0]


def read_table(path: Path) -> tuple[list[Row], int]:
    """The rows as `read_rows` gives them, and the number of damaged lines that were skipped."""
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    rows = [row for row in map(parse_row, lines) if row and type(row.get("env_steps")) is int]
    return without_rolled_back(rows), len(lines) - len(rows)


def without_rolled_back(rows: Iterable[Row]) -> list[Row]:
    """The rows that have env steps, without those that a later mark of a rollback discards."""
    kept: list[Row] = []
    for row in rows:
        if type(row.get("env_steps")) is not int:
            continue
        if row.get("event") == "attached":  # for all rows: games of about one time are unordered
            kept = [earlier for earlier in kept if earlier["env_steps"] <= row["env_steps"]]
        else:
            kept.append(row)
    return kept


def last_rows(path: Path, num_bytes: int = TAIL_BYTES) -> list[Row]:
    """The rows in the last bytes of a file, oldest first; empty if it can't be read."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - num_bytes)
            file.seek(start)
            lines = file.read(num_bytes).splitlines()
    except OSError:
        return []
    rows = map(parse_row, lines[1:] if start else lines)
    return [row for row in rows if row is not None]


def latest(metrics: Path) -> dict[str, Row]:
    tails = {path.stem: last_rows(path) for path in metrics.glob("worker-*.jsonl")}
    return {name: tail[-1] for name, tail in tails.items() if tail}


class Cache:
    """Caches what is parsed of each file until the file changes."""

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


class RowFollower:
    """The lines appended to a file since the last call; a file that was cut starts over."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def lines(self) -> Iterator[bytes]:
        """The new complete lines; an incomplete line is returned once it is complete."""
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                yield line[:-1]
