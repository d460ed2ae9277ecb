"""Play evaluation games in a fork, made when the process has only imported TensorFlow.

The import takes 1.3 of the 2 seconds that 20 games of CartPole cost, and ten times as long where
many workers share the cores. So the chief forks before its first graph, while it has only one
relevant thread. The fork waits for requests, and forks again for each of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from a3c.errors import RetryableError
from a3c.keeper import spawn

Play = Callable[[Path, int], dict[str, Any]]  # from a checkpoint and a number of games to scores


class Games:
    """The fork that plays; the kernel ends it when this process ends for any reason."""

    def __init__(self, play: Play) -> None:
        source, self._requests = os.pipe()
        self._answers, sink = os.pipe()
        self._said = b""
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._requests)
                os.close(self._answers)
                _serve(play, source, sink, parent)
            finally:
                os._exit(0)
        os.close(source)
        os.close(sink)
        os.set_blocking(self._answers, False)

    def start(self, checkpoint: Path, games: int) -> None:
        """Begin to play; raises RetryableError if the fork has ended."""
        try:
            os.write(self._requests, json.dumps([str(checkpoint), games]).encode() + b"\n")
        except BrokenPipeError:
            raise RetryableError("the process that plays evaluation games is lost") from None

    def poll(self) -> dict[str, Any] | None:
        """The scores, or a dictionary with the key `error`; None while games are played."""
        while select.select([self._answers], [], [], 0)[0]:
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                raise RetryableError("the process that plays evaluation games is lost")
            self._said += chunk
        line, end, rest = self._said.partition(b"\n")
        if not end:
            return None
        self._said = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the fork and the games that it plays."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # killpg can't find it before its setsid
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._requests)
        os.close(self._answers)


def _serve(play: Play, requests: int, answers: int, parent: int) -> None:
    """Play each request in a fork of its own until the other end of the pipe is closed."""
    os.setsid()  # a new session, because Linux schedules CPU time by session
    spawn.die_with(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    with open(requests) as lines:
        for line in lines:
            here, pid = os.getpid(), os.fork()
            if pid == 0:
                spawn.die_with(here)
                _play(play, line, answers)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                _say(answers, {"error": f"the process that played them ended with {code}"})


def _play(play: Play, request: str, answers: int) -> NoReturn:
    code = 1
    try:
        checkpoint, games = json.loads(request)
        try:
            answer = play(Path(checkpoint), games)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(answers, answer)
        code = 0
    finally:
        os._exit(code)


def _say(answers: int, answer: dict[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[os.write(answers, line) :]
