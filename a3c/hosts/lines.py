"""Read lines from a descriptor as they arrive."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

_CHUNK = 1 << 16


class Lines:
    """The data of a descriptor, line by line; a line may arrive in pieces."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self.closed = False

    def read(self, timeout_s: float) -> Iterator[bytes]:
        """Wait at most `timeout_s` for data, and yield the lines that are complete."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return
        data = os.read(self._descriptor, _CHUNK)
        self.closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from lines
