"""Read the ends of growing files, and cache files until they change.

Metrics files grow for days. The dashboard reads them every second, so it must not read them whole.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

Row = dict[str, Any]
T = TypeVar("T")

TAIL_BYTES = 1 << 14
_CHUNK_BYTES = 1 << 20
_KNOWN_BYTES = 256  # of the last line read; if they differ now, the file was replaced
_MAX_NUMBER = 1 << 63
_WORDS = ("state", "event")
_MAX_EPISODES_BYTES = 1 << 26


class Cache(Generic[T]):
    """Caches the result of `parse` for each file until the file changes."""

    def __init__(self, parse: Callable[[Path], T]) -> None:
        self._parse = parse
        self._known: dict[Path, tuple[tuple[int, int, int], T]] = {}

    def get(self, path: Path) -> T | None:
        """The parsed contents of the file now; None if it can't be read."""
        try:
            stat = path.stat()
        except OSError:
            self._known.pop(path, None)
            return None
        signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = self._known.get(path)
        if known is None or known[0] != signature:
            try:
                known = self._known[path] = (signature, self._parse(path))
            except OSError:  # deleted meanwhile, a directory, or not readable
                return None
        return known[1]


class Follower:
    """The lines appended to a file since the last call.

    A file that was replaced or truncated is read from its beginning, even if it is longer now than
    before.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._inode: int | None = None
        self._before = b""  # the last bytes read before the offset

    def lines(self) -> Iterator[bytes]:
        """The new complete lines; an incomplete line is returned once it is complete."""
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            self._start_over_if_replaced(file.fileno())
            file.seek(self._offset)
            rest = b""
            while chunk := file.read(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    self._offset += len(line) + 1
                    self._before = line[-_KNOWN_BYTES:] + b"\n"
                    yield line

    def _start_over_if_replaced(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        start = max(0, self._offset - len(self._before))
        if (
            self._inode not in (None, stat.st_ino)
            or stat.st_size < self._offset
            or os.pread(descriptor, len(self._before), start) != self._before
        ):
            self._offset, self._before = 0, b""
        self._inode = stat.st_ino


def parse_row(line: bytes) -> Row | None:
    """The row in a line of JSON; None if the line is incomplete or holds something else.

    Kept are only numbers between -2^63 and 2^63, and texts under the keys in `_WORDS`.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return {key: value for key, value in row.items() if _is_sound(key, value)}


def _is_sound(key: str, value: Any) -> bool:
    if isinstance(value, int | float):
        return -_MAX_NUMBER < value < _MAX_NUMBER  # False for NaN too
    return isinstance(value, str) and key in _WORDS


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


def sampled_rows(path: Path, num_rows: int, has: str) -> tuple[list[Row], int]:
    """Rows with the key `has`, sampled evenly over a file, and the file's size at that time.

    Rows about a rollback are included. A file that isn't much larger than the sample is read whole.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size <= num_rows * TAIL_BYTES // 4:
                file.seek(0)
                return list(_rows_with(has, file.read(size).splitlines())), size
            found: list[Row] = []
            for place in range(num_rows):
                file.seek(size * place // num_rows)
                lines = file.read(TAIL_BYTES // 4).splitlines()[1:]
                found += itertools.islice(_rows_with(has, lines), 1)
            return found, size
    except OSError:
        return [], 0


def _rows_with(key: str, lines: Iterable[bytes]) -> Iterator[Row]:
    return (row for row in map(parse_row, lines) if row and (key in row or "event" in row))


class EpisodeCounts:
    """Counts each worker's games in the chief's file; gives up if the file is too large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._follower = Follower(path)
        self._counts: Counter[int] = Counter()

    def update(self) -> Counter[int] | None:
        """The current counts; None if the file is missing or too large."""
        try:
            if not self._counts and self._path.stat().st_size > _MAX_EPISODES_BYTES:
                return None
        except OSError:
            return None
        for line in self._follower.lines():
            worker = re.search(rb'"worker":\s*(\d+)', line)
            if worker:
                self._counts[int(worker[1])] += 1
        return self._counts
