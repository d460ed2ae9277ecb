"""The heartbeat of a process: it touches a file that its keeper watches."""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path

VARIABLE = "A3C_HEARTBEAT"
INTERVAL_S = 0.5


class Heartbeat:
    """Touches a file at most twice a second; does nothing if no keeper requested it."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._last = -math.inf

    @classmethod
    def from_environment(cls) -> Heartbeat:
        """The heartbeat that this process's keeper requested, if it has a keeper."""
        return cls(os.environ.get(VARIABLE))

    def beat(self) -> None:
        """Report that the loop is alive; disk errors are ignored."""
        now = time.monotonic()
        if self._path and now - self._last >= INTERVAL_S:
            self._last = now
            with contextlib.suppress(OSError):
                self._path.touch()
