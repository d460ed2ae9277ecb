"""Play evaluation games in a fork, made when the process has only imported TensorFlow.

The import takes 1.3 of the 2 seconds that 20 games of CartPole cost, and ten times as long where
many workers share the cores. So the chief forks before its first graph, while it has only one
relevant thread. The fork waits for requests, and forks again for each of them.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from a3c.errors import RetryableError
from a3c.keeper import spawn

Play = Callable[[Path, int], dict[str, Any]]  # from a checkpoint and a number of games to scores


class EvaluationProcess:
    """The fork that plays; the kernel ends it when this process ends for any reason."""

    def __init__(self, play: Play) -> None:
        """Fork; raises RetryableError if the machine has no room for a process."""
        self._fork, far_end = Pipe()
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError as error:  # at the limit of processes or memory
            what = "no process for evaluation games"
            raise RetryableError(f"{what}: {error.strerror}") from None
        if self._pid == 0:
            try:
                self._fork.close()
                _serve(play, far_end, parent)
            finally:
                os._exit(1)
        far_end.close()

    def start(self, checkpoint: Path, games: int) -> None:
        """Begin to play; raises RetryableError if the fork has ended."""
        with _raise_if_lost():
            self._fork.send((checkpoint, games))

    def poll(self) -> dict[str, Any] | None:
        """The scores, or a dictionary with the key `error`; None while games are played."""
        with _raise_if_lost():
            return self._fork.recv() if self._fork.poll() else None

    def close(self) -> None:
        spawn.signal_group(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has no group of its own before setsid
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # where the user's code ignores SIGCHLD
            os.waitpid(self._pid, 0)
        self._fork.close()


@contextlib.contextmanager
def _raise_if_lost() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        raise RetryableError("the process that plays evaluation games is lost") from None


def _serve(play: Play, requests: Connection, parent: int) -> None:
    """Play each request in a fork of its own until the other end of the pipe is closed."""
    os.setsid()  # a new session, because Linux schedules CPU time by session
    spawn.die_with(parent)
    while True:
        checkpoint, games = requests.recv()
        here, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                spawn.die_with(here)
                try:
                    answer = play(checkpoint, games)
                except (Exception, SystemExit) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                requests.send(answer)
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == -signal.SIGALRM:
            requests.send({"error": "a step took longer than --heartbeat-timeout allows"})
        elif code:
            requests.send({"error": f"the process that played them ended with {code}"})
