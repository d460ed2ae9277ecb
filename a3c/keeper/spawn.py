"""A child of the operating system: its session, its group, and its death with its keeper's.

A child leads a session and process group of its own. It can't outlive its keeper, however that
ends:

- Linux sends it SIGKILL when the keeper dies (PR_SET_PDEATHSIG). KILL and not TERM: nobody would be
  left to insist with a child that hangs or ignores TERM, and checkpoints are safe against KILL.
- The death signal reaches the child only, and exists on Linux only. So a guardian, a fork of the
  keeper asleep on a pipe, kills the child's whole group once the pipe's other end is gone.

Grandchildren that left the group come back to the keeper as their nearest subreaper (Linux) and are
ended with the child. Those alone live on where the keeper itself is killed by SIGKILL.
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
    """Start `argv` with stdout and stderr on `output_fd` and nothing on stdin; returns its pid.

    Blocks until the program runs, so that its group can be signalled at once. Raises OSError where
    it can't be started. The caller has one thread: the death signal is tied to the one that forks.
    """
    prctl = _load_prctl()
    parent = os.getpid()
    report, write_report = os.pipe()
    with _signals_blocked() as mask:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                if network is not None:  # before the death signal, which this could clear
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
    """The exit code of our child `pid`, negative for a signal, or None while it lives.

    What is left of its process group is killed while the dead child still holds the group's number,
    so that a number used anew can't be hit.
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
    """Send a signal to a child's process group, if there still is one."""
    assert pgid > 1, "0 and 1 would mean everybody"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


class Guardian:
    """A fork of this process that outlives it just long enough to kill the group it watches."""

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
        """Watch this group from now on; 0 for none."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._sink, b"%d\n" % pgid)

    def close(self) -> None:
        """Let the guardian go; it kills the group that it was last told of."""
        os.close(self._sink)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def adopt_orphans() -> bool:
    """Make this process the parent of its orphaned descendants; False where that can't be had."""
    prctl = _load_prctl()
    return (
        prctl is not None and _children_file().exists() and prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0
    )


def reap_adopted(known: set[int]) -> list[int]:
    """Collect adopted children that ended; returns those that live, without the pids in `known`."""
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
    """Kill every adopted child, and what comes to us through their death, for a second at most."""
    deadline = time.monotonic() + _ADOPTED_END_S
    while (alive := reap_adopted(known)) and time.monotonic() < deadline:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _load_prctl() -> Prctl | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    # Variadic in C: every argument must be there, as a long.
    return lambda option, value: prctl(option, *(ctypes.c_ulong(n) for n in (value, 0, 0, 0)))


def die_with(parent: int) -> None:
    """Have this process, a fork of `parent`, end when that does (Linux)."""
    _die_with(parent, _load_prctl())


def _die_with(parent: int, prctl: Prctl | None) -> None:
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the death signal was armed
        os._exit(127)


def _become(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    output_fd: int,
    mask: set[int],
) -> None:
    """Turn this fork into the program: from here on nothing of the keeper's is shared."""
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
    """Wait for the other end of `source` to be gone, then kill the group last named there."""
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
    """Hold signals back over a fork, which must not act on them with our handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
