"""What a kept process says: into its log, onto the keeper's stdout, and its last lines in memory.

Nothing here may stop the process or its keeper. A full disk costs log lines, a terminal that is
stopped or gone costs the echo; the process writes on into a pipe that is always read.
"""

from __future__ import annotations

import os
import re
import select
import stat
import time
from collections import deque
from pathlib import Path

TAIL_LINES = 20
LINE_CHARS = 500
_PARTIAL_BYTES = 8192
_BACKLOG_BYTES = 1 << 18
_BLOCKING_WRITE_BYTES = 512

# Terminal sequences and control characters: a record is shown in other people's terminals.
_CONTROL = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class LogFile:
    """An append-only log that outlives a full disk and says how much was lost to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._lost_bytes = 0

    def open(self) -> None:
        """Open the log, readable for its owner only; raises OSError."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY
        self._fd = os.open(self._path, flags, 0o600)

    def write(self, data: bytes) -> OSError | None:
        """Append `data`; what can't be written is counted as lost and the error returned."""
        note = b"\nkeeper: %d bytes of output were lost here\n" % self._lost_bytes
        note = note if self._lost_bytes else b""
        rest = note + data
        try:
            if self._fd is None:
                self.open()
            assert self._fd is not None
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            counted = self._lost_bytes if len(rest) > len(data) else 0
            self._lost_bytes = counted + min(len(rest), len(data))
            return error
        self._lost_bytes = 0
        return None

    def close(self) -> None:
        """Close the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Echo:
    """A copy of the output on a descriptor that may be slow, stopped or gone."""

    def __init__(self, fd: int) -> None:
        self._backlog = bytearray()
        self._fd, self._at_once = _open_again(fd)
        self._broken = False

    @property
    def fd(self) -> int:
        """The descriptor to wait on for room while `pending`."""
        return self._fd

    @property
    def pending(self) -> bool:
        """Whether something waits for room."""
        return bool(self._backlog) and not self._broken

    def write(self, data: bytes) -> None:
        """Queue `data`, write what there is room for, and drop the oldest when it is too much."""
        if self._broken:
            return
        self._backlog += data
        del self._backlog[: max(0, len(self._backlog) - _BACKLOG_BYTES)]
        self.flush()

    def flush(self, timeout_s: float = 0.0) -> None:
        """Write as much as there is room for, waiting up to `timeout_s` for more."""
        deadline = time.monotonic() + timeout_s
        while self.pending:
            wait_s = max(0.0, deadline - time.monotonic())
            try:
                if not select.select([], [self._fd], [], wait_s)[1]:
                    return
                del self._backlog[: os.write(self._fd, self._backlog[: self._at_once])]
            except BlockingIOError:
                return
            except OSError:
                self._broken = True

    def close(self) -> None:
        """Give the last lines half a second to get out, then close."""
        self.flush(timeout_s=0.5)
        os.close(self._fd)


def _open_again(fd: int) -> tuple[int, int]:
    """A descriptor of our own for what `fd` is open on, and how many bytes to write at once.

    O_NONBLOCK belongs to the open file and not to the descriptor: set on a shared terminal it would
    surprise its other users, so the file is opened a second time. Where that can't be (a socket,
    macOS) small pieces are written when there is room.
    """
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode) or os.uname().sysname != "Linux":
            return os.dup(fd), _BLOCKING_WRITE_BYTES
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{fd}", flags), _BACKLOG_BYTES
    except OSError:
        return os.dup(fd), _BLOCKING_WRITE_BYTES


class Tail:
    """The last lines of a stream of bytes, fit to be shown anywhere."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""

    @property
    def midline(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._partial)

    def feed(self, data: bytes) -> None:
        """Take in more of the stream."""
        *lines, partial = (self._partial + data).split(b"\n")
        self._lines.extend(_clean(line) for line in lines[-TAIL_LINES:])
        rewritten = partial.rfind(b"\r", 0, max(0, len(partial) - 1))
        self._partial = partial[rewritten + 1 :][:_PARTIAL_BYTES]

    def lines(self) -> list[str]:
        """Up to `TAIL_LINES` lines, the newest last."""
        partial = [_clean(self._partial)] if self._partial else []
        return [*self._lines, *partial][-TAIL_LINES:]

    def clear(self) -> None:
        """Forget everything."""
        self._lines.clear()
        self._partial = b""


def _clean(line: bytes) -> str:
    """One line as a terminal would leave it: after the last carriage return, without escapes."""
    text = line.removesuffix(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    return _CONTROL.sub("", text)[:LINE_CHARS]


class Capture:
    """The output of a kept process, copied to its log, to an echo and to a tail."""

    def __init__(self, log: LogFile, echo: Echo | None) -> None:
        self._log = log
        self._echo = echo
        self._tail = Tail()
        self._log_failed = False

    @property
    def echo(self) -> Echo | None:
        """The echo, for whoever waits for room on it."""
        return self._echo

    def feed(self, data: bytes) -> None:
        """Take in bytes from the process."""
        self._tail.feed(data)
        if self._echo is not None:
            self._echo.write(data)
        error = self._log.write(data)
        if error is not None and not self._log_failed:
            self._log_failed = True
            self.note(
                f"cannot write the log: {error.strerror}; the process goes on, output is lost"
            )

    def note(self, text: str) -> None:
        """Add a line of the keeper's own, on a line of its own."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} keeper: {text}\n"
        self.feed(("\n" * self._tail.midline + line).encode("utf-8", "replace"))

    def tail(self) -> list[str]:
        """The last lines since `forget`."""
        return self._tail.lines()

    def forget(self) -> None:
        """Let the tail begin anew, for the next life of the process."""
        self._tail.clear()

    def close(self) -> None:
        """Flush and close log and echo."""
        if self._echo is not None:
            self._echo.close()
        self._log.close()
