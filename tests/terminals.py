"""A terminal for a command; tests can close it while the command runs."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

COLUMNS, LINES = 100, 40


class Terminal:
    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self._shown = bytearray()
        self._closed = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self._shown += data

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        """Close the window: the command gets SIGHUP."""
        if self._closed.acquire(blocking=False):
            os.close(self._master)


@contextlib.contextmanager
def terminal(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str] = os.environ
) -> Iterator[Terminal]:
    """A command on a terminal; on exit the terminal is closed and the command ended."""
    opened = Terminal(command, cwd, environment)
    try:
        yield opened
    finally:
        opened.close()
        opened.process.kill()
        opened.process.wait()
