"""One started process of a keeper: its output, its heartbeat, and its end by TERM, then KILL."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from a3c.keeper import spawn
from a3c.keeper.namespaces import Namespace
from a3c.process.process_records import identify

_LONGEST_TICK_S = 1.0
_READ_BYTES = 1 << 16
_MOST_READS = 64


class Pulse:
    """Measures how long a process has been silent, by the keeper's own clock.

    A beat is any change of the file's mtime. Its value is ignored, so steps of the wall clock don't
    matter. Time in which the keeper itself was stopped or got no CPU counts as one second. The
    mtime is set to 0 before the first beat, so that even an immediate beat changes it. Silence is
    ignored while the disk is read-only, because the process can't write a beat there.
    """

    def __init__(self, path: Path | None) -> None:
        """Create the file or reset its mtime; an existing file can be touched on a full disk."""
        self._path = path
        if path is not None:
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                os.utime(path, (0, 0))
        self._seen = self._look()
        self.beat = False
        self.silence_s = 0.0

    def check(self, elapsed_s: float) -> bool:
        """Look for a beat, `elapsed_s` after the last check; returns True at the first beat."""
        seen = self._look()
        if seen in (None, self._seen):
            self.silence_s += min(elapsed_s, _LONGEST_TICK_S)
            if self._path and seen and not os.access(self._path, os.W_OK):
                self.silence_s = 0.0
            return False
        first = not self.beat
        self._seen, self.beat, self.silence_s = seen, True, 0.0
        return first

    def _look(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


class Child:
    """A started process. `reason` says why the keeper is ending it; None if it isn't."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        heartbeat: Path | None,
        take_output: Callable[[bytes], None],
        network: Namespace | None = None,
    ) -> None:
        """Start `argv`; raises OSError on failure. `take_output` receives all its output."""
        self._take_output = take_output
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        self._output_open = True
        self.pulse = Pulse(heartbeat)
        try:
            self.pid = spawn.start(argv, env, cwd, output, network)
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(output)
        self.identity = identify(self.pid)
        self.reason: str | None = None
        self._started = time.monotonic()
        self._kill_at: float | None = None
        self._killed = False

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def readable(self) -> list[int]:
        """The descriptors to wait on for output."""
        return [self._output] if self._output_open else []

    def read(self) -> bool:
        """Read one piece of output; returns whether there was any."""
        if not self._output_open:
            return False
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return False
        self._output_open = bool(data)
        if data:
            self._take_output(data)
        return bool(data)

    def end(self, reason: str, grace_s: float) -> None:
        """Send TERM to the group; `tick` sends KILL after `grace_s`.

        The first reason is kept. CONT follows, since a stopped process can't act on TERM.
        """
        self.reason = self.reason or reason
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_s
            spawn.signal_group(self.pid, signal.SIGTERM)
            spawn.signal_group(self.pid, signal.SIGCONT)

    def kill(self, reason: str) -> None:
        """Send KILL to the group now."""
        self.reason = self.reason or reason
        self._kill_at = time.monotonic()
        self._killed = True
        spawn.signal_group(self.pid, signal.SIGKILL)

    def tick(self) -> bool:
        """Send KILL if it is due; returns True the first time."""
        if self._kill_at is None or time.monotonic() < self._kill_at:
            return False
        spawn.signal_group(self.pid, signal.SIGKILL)
        first, self._killed = not self._killed, True
        return first

    def collect(self) -> int | None:
        """The exit code once the process has ended and its group is killed; None before that."""
        return spawn.collect(self.pid)

    def close(self) -> None:
        """Read the remaining output and close the pipe, even if its other end is still open."""
        for _ in range(_MOST_READS):
            if not self.read():
                break
        os.close(self._output)
