"""Start a child process, read its output and heartbeat, and end it, also when its keeper ends.

A child leads its own session and process group. It never outlives its keeper, for two reasons:

- Linux sends the child SIGKILL when the keeper dies (PR_SET_PDEATHSIG). It is KILL because no
  keeper would be left to follow up on a child that ignores TERM. Checkpoints are safe against KILL.
- The death signal reaches the child only. So the keeper also forks a guardian, which waits on a
  pipe and kills the child's whole group when the keeper's end closes.

Grandchildren that left the group are reparented to the keeper, a subreaper, and are ended with the
child. Only these grandchildren survive if the keeper itself is killed by SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from a3c.keeper import namespaces
from a3c.keeper.namespaces import Namespace, signals_blocked
from a3c.keeper.spec import KeeperSpec
from a3c.process.heartbeat import HeartbeatMonitor

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_ADOPTED_END_S = 1.0
_CHILDREN = Path("/proc/thread-self/children")  # not in every kernel
_READ_BYTES = 1 << 16
_MOST_READS = 64


class Child:
    """A started process. `reason` says why the keeper is ending it; None if it isn't."""

    def __init__(
        self,
        spec: KeeperSpec,
        env: Mapping[str, str],
        take_output: Callable[[bytes], None],
        network: Namespace | None,
    ) -> None:
        """Start the process; raises OSError. `take_output` receives all its output."""
        self._take_output = take_output
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        self.readable = [self._output]  # the descriptors to wait on for output
        self.heartbeat = HeartbeatMonitor(spec.heartbeat)
        try:
            self.pid = start(spec.argv, env, spec.directory, output, network)
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(output)
        self.started_at = time.monotonic()
        self.reason: str | None = None
        self._kill_at: float | None = None

    def read(self) -> bool:
        """Read one piece of output; returns whether there was any."""
        with contextlib.suppress(BlockingIOError):
            if self.readable and (data := os.read(self._output, _READ_BYTES)):
                self._take_output(data)
                return True
            self.readable = []
        return False

    def end(self, reason: str, grace_s: float) -> None:
        """Send TERM to the group; `tick` sends KILL after `grace_s`. The first reason is kept."""
        self.reason = self.reason or reason
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_s
            signal_group(self.pid, signal.SIGTERM)
            signal_group(self.pid, signal.SIGCONT)

    def kill(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._kill_at = math.inf
        signal_group(self.pid, signal.SIGKILL)

    def tick(self) -> bool:
        """Send KILL if it is due; returns whether it was sent."""
        is_due = self._kill_at is not None and time.monotonic() >= self._kill_at
        if is_due:
            self.kill("")
        return is_due

    def close(self) -> None:
        """Read the remaining output and close the pipe, even if its other end is still open."""
        for _ in range(_MOST_READS):
            if not self.read():
                break
        os.close(self._output)


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    output_fd: int,
    network: Namespace | None,
) -> int:
    """Start `argv` with stdout and stderr on `output_fd` and an empty stdin; returns its pid.

    Blocks until the program runs; raises OSError if it can't be started. The caller must have one
    thread: the child gets the death signal when the thread that forked ends.
    """
    parent = os.getpid()
    report, write_report = os.pipe()
    with signals_blocked() as mask:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                if network is not None:  # first: entering could clear the death signal
                    namespaces.enter(network)
                die_with(parent)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output_fd, 1)
                os.dup2(output_fd, 2)
                if cwd is not None:
                    os.chdir(cwd)
                # The program starts without our signal handlers.
                signal.set_wakeup_fd(-1)
                for signum in signal.valid_signals():
                    if callable(signal.getsignal(signum)) or signum in _IGNORED_BY_PYTHON:
                        signal.signal(signum, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                os.execvpe(argv[0], list(argv), dict(env))
            except OSError as error:
                os.write(write_report, b"%d" % (error.errno or 0))
            finally:
                os._exit(127)
    os.close(write_report)
    failure = os.read(report, 32)
    os.close(report)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def collect(pid: int) -> int | None:
    """The exit code of our child `pid`, -n for signal n; None while it runs.

    The rest of its process group is killed before the child is reaped: until then no other group
    can have its number.
    """
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    signal_group(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def signal_group(pgid: int, signum: int) -> None:
    """Send a signal to a child's process group if it still exists."""
    assert pgid > 1, "0 and 1 would mean everybody"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


class Guardian:
    """A fork of this process that kills the watched group when this process has ended."""

    def __init__(self) -> None:
        source, self._sink = os.pipe()
        with signals_blocked():
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    os.close(self._sink)
                    os.setsid()
                    null = os.open(os.devnull, os.O_RDWR)
                    for fd in (0, 1, 2):
                        os.dup2(null, fd)
                    told = b""
                    while chunk := os.read(source, 4096):  # until the keeper's end closes
                        told = (told + chunk)[-64:]
                    words = told.split()
                    if words and int(words[-1]) > 1:
                        signal_group(int(words[-1]), signal.SIGKILL)
                finally:
                    os._exit(0)
        os.close(source)

    def watch(self, pgid: int) -> None:
        """Watch this group from now on; 0 means none."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._sink, b"%d\n" % pgid)

    def close(self) -> None:
        """End the guardian; it first kills the group that it watches, if any."""
        os.close(self._sink)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def die_with(parent: int) -> None:
    """Make this process, a fork of `parent`, end when `parent` ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the death signal was set
        os._exit(127)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, where the kernel lists them."""
    if _CHILDREN.exists():
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    # prctl is variadic in C, so all arguments must be passed, each as a long.
    ctypes.CDLL(None).prctl(option, *(ctypes.c_ulong(n) for n in (value, 0, 0, 0)))


def reap_adopted(known: set[int]) -> list[int]:
    """Reap adopted children that ended; returns the others, without the pids in `known`."""
    try:
        pids = [int(pid) for pid in _CHILDREN.read_text().split()]
    except OSError:
        return []
    alive = []
    for pid in set(pids) - known:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                alive.append(pid)
    return alive


def end_adopted(known: set[int]) -> None:
    """Kill adopted children, and the orphans that their death adds, for at most a second."""
    deadline = time.monotonic() + _ADOPTED_END_S
    while (alive := reap_adopted(known)) and time.monotonic() < deadline:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
