"""A connection to one of our programs on another host: JSON objects over ssh, one per line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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


class Connection:
    """A program at the other end of ssh, or a local one.

    `on_other` gets each line that is not an object, such as the output of a login script.
    """

    def __init__(
        self, command: Sequence[str], on_other: Callable[[bytes], None] = lambda _: None
    ) -> None:
        self._on_other = on_other
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # `select` can't see data in a read buffer
            start_new_session=True,  # else a signal to our group ends ssh too early
        )
        assert self._process.stdin
        assert self._process.stdout
        self._ends = (self._process.stdin, self._process.stdout)
        self._words: list[str] = []
        self._lines = Lines(self._process.stdout.fileno())

    @property
    def closed(self) -> bool:
        return self._lines.closed

    def send(self, message: object, *, before: bytes = b"") -> None:
        """Send a message, after these bytes; a closed connection is noticed when receiving."""
        with contextlib.suppress(OSError):
            write_all(self._ends[0].fileno(), before + json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Wait at most `timeout_s` for data, and yield the messages that are complete."""
        for line in self._lines.read(timeout_s):
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                yield message
            else:
                self._on_other(line)

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """The answer to a request; None if the connection is closed, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.closed and (left_s := deadline - time.monotonic()) > 0:
            for message in self.receive(left_s):
                return message
        return None

    def close(self, timeout_s: float = 2.0) -> tuple[int, str]:
        """End the connection; return the program's exit code and its last line on stderr."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if not self._errors.closed:
            with self._errors as file:
                file.seek(0)
                self._words = file.read().decode(errors="replace").strip().splitlines()
        return self._process.wait(), self._words[-1] if self._words else ""


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, even if the system takes it in pieces."""
    while data:
        data = data[os.write(descriptor, data) :]
