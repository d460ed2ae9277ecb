"""Start a child process in its own session and group, and end it when its keeper ends.

A child leads its own session and process group. It never outlives its keeper, for two reasons:

- Linux sends the child SIGKILL when the keeper dies (PR_SET_PDEATHSIG). It is KILL because no
  keeper would be left to follow up on a child that ignores TERM. Checkpoints are safe against KILL.
- The death signal exists on Linux only and reaches the child only. So the keeper also forks a
  guardian, which waits on a pipe and kills the child's whole group when the keeper's end closes.

Grandchildren that left the group are reparented to the keeper, a subreaper (Linux), and are ended
with the child. Only these grandchildren survive if the keeper itself is killed by SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from a3c.keeper import namespaces
from a3c.keeper.namespaces import Namespace

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_ADOPTED_END_S = 1.0

Prctl = Callable[[int, int], int]


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    output_fd: int,
    network: Namespace | None = None,
) -> int:
    """Start `argv` with stdout and stderr on `output_fd` and an empty stdin; returns its pid.

    Blocks until the program runs, so that its group can be signalled at once. Raises OSError if it
    can't be started. The caller must have one thread: the child gets the death signal when the
    thread that forked ends.
    """
    prctl = _load_prctl()
    parent = os.getpid()
    report, write_report = os.pipe()
    with _signals_blocked() as mask:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                if network is not None:  # first: entering could clear the death signal
                    namespaces.enter(network)
                _die_with(parent, prctl)
                _become(argv, env, cwd, output_fd, mask)
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

    The rest of its process group is killed before the child is reaped. Until then the group's
    number can't be reused, so the signal can't reach an unrelated group.
    """
    can_look = hasattr(os, "waitid")
    if can_look:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        signal_group(pid, signal.SIGKILL)
    reaped, status = os.waitpid(pid, os.WNOHANG)
    if not reaped:
        return None
    if not can_look:
        signal_group(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def signal_group(pgid: int, signum: int) -> None:
    """Send a signal to a child's process group if it still exists."""
    assert pgid > 1, "0 and 1 would mean everybody"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


class Guardian:
    """A fork of this process that kills the watched group when this process has ended."""

    def __init__(self) -> None:
        source, self._sink = os.pipe()
        with _signals_blocked():
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    os.close(self._sink)
                    _guard(source)
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


def adopt_orphans() -> bool:
    """Make this process the parent of its orphaned descendants; False if unsupported."""
    prctl = _load_prctl()
    return (
        prctl is not None and _children_file().exists() and prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0
    )


def reap_adopted(known: set[int]) -> list[int]:
    """Reap adopted children that ended; returns the running ones, without the pids in `known`."""
    try:
        pids = [int(pid) for pid in _children_file().read_text().split()]
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


def _load_prctl() -> Prctl | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    # prctl is variadic in C, so all arguments must be passed, each as a long.
    return lambda option, value: prctl(option, *(ctypes.c_ulong(n) for n in (value, 0, 0, 0)))


def die_with(parent: int) -> None:
    """Make this process, a fork of `parent`, end when `parent` ends (Linux)."""
    _die_with(parent, _load_prctl())


def _die_with(parent: int, prctl: Prctl | None) -> None:
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the death signal was set
        os._exit(127)


def _become(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    output_fd: int,
    mask: set[int],
) -> None:
    """Replace this fork by the program, without the keeper's signal handlers and stdin."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    if cwd is not None:
        os.chdir(cwd)
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)) or signum in _IGNORED_BY_PYTHON:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.execvpe(argv[0], list(argv), dict(env))


def _guard(source: int) -> None:
    """Wait until the other end of `source` closes, then kill the group last written there."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    told = b""
    while chunk := os.read(source, 4096):
        told = (told + chunk)[-64:]
    words = told.split()
    if words and int(words[-1]) > 1:
        signal_group(int(words[-1]), signal.SIGKILL)


def _children_file() -> Path:
    return Path(f"/proc/self/task/{os.getpid()}/children")


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[int]]:
    """Block signals during a fork, so that the fork never runs our signal handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
