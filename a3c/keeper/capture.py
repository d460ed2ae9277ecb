"""Copy a process's output to its log, to the keeper's stdout and to a short tail in memory.

Errors here never stop the process or its keeper. A full disk loses log lines; a stopped or closed
terminal loses the echo. The keeper always reads the pipe, so the process can go on writing.
"""

import contextlib
import os
import re
import select
import time
from collections import deque
from pathlib import Path

TAIL_LINES = 20
_BACKLOG_BYTES = 1 << 18

# Terminal sequences and control characters are removed from the lines that `status` prints.
_CONTROL = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, even if the system takes it in pieces."""
    while data:
        data = data[os.write(descriptor, data) :]


class Echo:
    """A copy of the output on a descriptor that may be slow, stopped or closed."""

    def __init__(self, fd: int) -> None:
        """Open the file behind `fd` again: O_NONBLOCK would affect all users of a terminal."""
        self._backlog = bytearray()
        self._broken = False
        self._at_once = _BACKLOG_BYTES
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
        try:
            self.fd = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:  # a socket: small pieces are written to it when `select` allows that
            self.fd = os.dup(fd)
            self._at_once = 512

    @property
    def pending(self) -> bool:
        return bool(self._backlog) and not self._broken

    def write(self, data: bytes) -> None:
        """Queue `data` and write without blocking; a full queue drops its oldest bytes."""
        self._backlog += data
        del self._backlog[: max(0, len(self._backlog) - _BACKLOG_BYTES)]
        self.flush()

    def flush(self, timeout_s: float = 0.0) -> None:
        """Write as much of the queue as possible within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.pending:
            wait_s = max(0.0, deadline - time.monotonic())
            try:
                if not select.select([], [self.fd], [], wait_s)[1]:
                    return
                del self._backlog[: os.write(self.fd, self._backlog[: self._at_once])]
            except BlockingIOError:
                return
            except OSError:
                self._broken = True


class Tail:
    """The last lines of a byte stream, safe to show on any terminal."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.partial = b""  # the last line, if it is incomplete

    def feed(self, data: bytes) -> None:
        *lines, partial = (self.partial + data).split(b"\n")
        self._lines.extend(_clean(line) for line in lines[-TAIL_LINES:])
        rewritten = partial.rfind(b"\r", 0, max(0, len(partial) - 1))
        self.partial = partial[rewritten + 1 :][:8192]

    def lines(self) -> list[str]:
        partial = [_clean(self.partial)] if self.partial else []
        return [*self._lines, *partial][-TAIL_LINES:]


def _clean(line: bytes) -> str:
    text = line.removesuffix(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    return _CONTROL.sub("", text)[:500]


class Capture:
    def __init__(self, path: Path, echo: Echo | None) -> None:
        self._path = path
        self._fd: int | None = None
        self._lost_bytes = 0
        self._log_failed = False
        self.echo = echo
        self.tail = Tail()

    def open_log(self) -> int:
        """Open the log, readable by its owner only, again if it was moved; raises OSError."""
        old = self._fd
        if old is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(self._path.stat(), os.fstat(old)):
                    return old
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY
            self._fd = os.open(self._path, flags, 0o600)
        except OSError:
            if old is None:
                raise
            return old  # such as in a run directory that was moved
        if old is not None:
            os.close(old)
        return self._fd

    def feed(self, data: bytes) -> None:
        self.tail.feed(data)
        if self.echo is not None:
            self.echo.write(data)
        try:
            if self._lost_bytes:  # on a full disk
                lost = b"\nkeeper: %d bytes of output were lost here\n" % self._lost_bytes
                write_all(self.open_log(), lost)
                self._lost_bytes = 0
            while data:
                data = data[os.write(self.open_log(), data) :]
        except OSError as error:
            self._lost_bytes += len(data)
            if not self._log_failed:
                self._log_failed = True
                why = error.strerror
                self.note(f"cannot write the log: {why}; the process goes on, output is lost")

    def note(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} keeper: {text}\n"
        self.feed(("\n" * bool(self.tail.partial) + line).encode("utf-8", "replace"))
