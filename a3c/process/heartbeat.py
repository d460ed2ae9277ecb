"""The heartbeat of a process: it touches a file that its keeper checks."""

import contextlib
import math
import os
import time
from pathlib import Path

VARIABLE = "A3C_HEARTBEAT"
INTERVAL_S = 0.5


class Heartbeat:
    """Touches the file that a keeper named, at most twice a second; no file without a keeper."""

    def __init__(self, path: str | None = None) -> None:
        path = path or os.environ.get(VARIABLE)
        self._path = Path(path) if path else None
        self.is_wanted = self._path is not None
        self._last = -math.inf

    def beat(self) -> None:
        """Report that the loop is alive; disk errors are ignored."""
        now = time.monotonic()
        if self._path and now - self._last >= INTERVAL_S:
            self._last = now
            with contextlib.suppress(OSError):
                self._path.touch()


class HeartbeatMonitor:
    """Measures how long a process has been silent, by the keeper's own clock.

    A beat is any change of the file's mtime, whatever its value: the wall clock may be set. Time in
    which the keeper itself was stopped counts as one second. Silence on a read-only disk, or
    in a folder that is gone, doesn't count, because the process can't write a beat there.
    """

    def __init__(self, path: Path | None) -> None:
        """Create the file with an mtime of 0, so that even an immediate beat changes it."""
        self._path = path
        if path is not None:
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                os.utime(path, (0, 0))
        self._seen = self._mark()
        self.has_beat = False
        self.silence_s = 0.0

    def check(self, elapsed_s: float) -> bool:
        """Look for a beat, `elapsed_s` after the last check; returns True at the first beat."""
        seen = self._mark()
        if seen in (None, self._seen):
            self.silence_s += min(elapsed_s, 1.0)
            if self._path and not os.access(self._path if seen else self._path.parent, os.W_OK):
                self.silence_s = 0.0
            return False
        first = not self.has_beat
        self._seen, self.has_beat, self.silence_s = seen, True, 0.0
        return first

    def _mark(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            if self._path is not None:
                status = self._path.stat()
                return status.st_ino, status.st_mtime_ns
        return None
