"""A terminal for a command. Tests can close it meanwhile; its `with` block ends both."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

COLUMNS, LINES = 100, 40


class Terminal:
    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str] = os.environ,
        lines: int = LINES,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))
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
        """Close the window: the command gets SIGHUP.

        The descriptor stays, as the thread reads by its number: another file could get that.
        """
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), self._master)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.process.kill()
        self.process.wait()
