"""A connection to one of our programs on another host: JSON objects over ssh, one per line."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from a3c.errors import UserError

CLOSE_TIMEOUT_S = 2.0
_CHUNK = 1 << 16


class Channel:
    """JSON objects on two descriptors, one per line; `on_other` gets lines that hold none."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self.on_other: Callable[[bytes], None] = lambda _: None  # such as of a login script
        self._rest = b""
        self._lines: list[bytes] = []
        self.closed = False

    def send(self, message: object, *, before: bytes = b"") -> None:
        """Send a message, after these bytes; a closed channel is noticed when receiving."""
        with contextlib.suppress(OSError):
            write_all(self._sink, before + json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Wait at most `timeout_s` for data, and yield the messages that are complete."""
        if not self._lines:
            if not select.select([self._source], [], [], timeout_s)[0]:
                return
            data = os.read(self._source, _CHUNK)
            self.closed = not data
            *self._lines, self._rest = (self._rest + data).split(b"\n")
        while self._lines:
            line = self._lines.pop(0)
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                yield message
            else:
                self.on_other(line)

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """The answer to a request; None if the channel is closed, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.closed and (left_s := deadline - time.monotonic()) > 0:
            for message in self.receive(left_s):
                return message
        return None


class Connection(Channel):
    """A channel to a program at the other end of ssh, or to a local one."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # else a signal to our group ends ssh too early
            )
        except FileNotFoundError:
            self._errors.close()
            raise UserError(f"--hosts: there is no {command[0]} here: install it") from None
        assert self._process.stdin
        assert self._process.stdout
        self._ends = (self._process.stdin, self._process.stdout)  # used by their descriptors only
        super().__init__(self._process.stdout.fileno(), self._process.stdin.fileno())

    def close(self) -> tuple[int, str]:
        """End the connection; return the program's exit code and its last line on stderr."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        words: list[str] = []
        if not self._errors.closed:  # else the connection is closed again
            with self._errors as file:
                file.seek(0)
                words = file.read().decode(errors="replace").strip().splitlines()
        return code, words[-1] if words else f"exit code {code}"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, even if the system takes it in pieces."""
    while data:
        data = data[os.write(descriptor, data) :]
