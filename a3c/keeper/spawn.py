"""Start a child process, read its output and heartbeat, and end it, also when its keeper ends.

A child leads its own session and process group. It never outlives its keeper, for two reasons:

- Linux sends the child SIGKILL when the keeper dies (PR_SET_PDEATHSIG). It is KILL because no
  keeper would be left to follow up on a child that ignores TERM. Checkpoints are safe against KILL.
- The death signal reaches the child only. So the keeper also starts a guardian, a shell that waits
  on a pipe and kills the child's whole group when the keeper's end closes.

Grandchildren that left the group are reparented to the keeper, a subreaper, and are ended with the
child. Only these grandchildren survive if the keeper itself is killed by SIGKILL.
"""

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from a3c.keeper.spec import KeeperSpec
from a3c.process.heartbeat import HeartbeatMonitor

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHILDREN = Path("/proc/thread-self/children")  # not in every kernel
GUARDIAN_WITHIN_S = 20.0  # shorter than FIRST_RECORD_S
# Reads process groups until the keeper's end closes, and kills the last one.
_GUARD = 'while read group; do last=$group; done; [ "$last" -gt 1 ] && kill -s KILL -- "-$last"'


class Child:
    """A started process. `reason` says why the keeper is ending it; None if it isn't."""

    def __init__(
        self, spec: KeeperSpec, env: Mapping[str, str], take_output: Callable[[bytes], None]
    ) -> None:
        """Start the process; blocks until the program runs, and raises OSError if it can't.

        `take_output` receives all its output. The caller must have one thread: the child gets the
        death signal when the thread that forked ends.
        """
        self._take_output = take_output
        self.heartbeat = HeartbeatMonitor(spec.heartbeat)
        parent = os.getpid()

        def prepare() -> None:
            die_with(parent)
            signal.set_wakeup_fd(-1)
            # Until the program runs, a signal shall end it, and not reach our handlers.
            for signum in signal.valid_signals():
                if callable(signal.getsignal(signum)):
                    signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        # Signals are blocked during the fork, so that it never runs our signal handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._process = subprocess.Popen(
                spec.argv,
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=spec.directory,
                env=env,
                start_new_session=True,
                preexec_fn=prepare,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert self._process.stdout
        self._output = self._process.stdout
        self.readable = [self._output.fileno()]  # the descriptors to wait on for output
        os.set_blocking(self._output.fileno(), False)
        self.pid = self._process.pid
        self.started_at = time.monotonic()
        self.reason: str | None = None
        self._kill_at: float | None = None

    def read(self) -> bool:
        """Read one piece of output; returns whether there was any."""
        with contextlib.suppress(BlockingIOError):
            if self.readable and (data := os.read(self.readable[0], 1 << 16)):
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

    def collect(self) -> int | None:
        """The exit code, -n for signal n; None while it runs."""
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        signal_group(self.pid, signal.SIGKILL)  # reaped later: no other group has its number yet
        return self._process.wait()

    def close(self) -> None:
        """Read the remaining output and close the pipe, even if its other end is still open."""
        for _ in range(64):
            if not self.read():
                break
        self._output.close()


def signal_group(pgid: int, signum: int) -> None:
    assert pgid > 1, "0 and 1 would mean everybody"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


class Guardian:
    """A shell that kills the watched group when this process ends; this process adopts orphans."""

    def __init__(self) -> None:
        """Make this process the parent of its orphaned descendants, where the kernel lists them."""
        if _CHILDREN.exists():
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        deadline = time.monotonic() + GUARDIAN_WITHIN_S
        while True:
            try:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARD],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                break
            except OSError:  # such as at the user's limit of processes
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.25)
        assert self._shell.stdin
        self._sink = self._shell.stdin.fileno()

    def watch(self, pgid: int) -> None:
        """Watch this group from now on; 0 means none."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._sink, b"%d\n" % pgid)

    def reap_adopted(self, child: int = 0) -> list[int]:
        """Reap adopted processes that ended; returns the others, without the keeper's `child`."""
        alive, children = [], ""
        with contextlib.suppress(OSError):
            children = _CHILDREN.read_text()
        for pid in set(map(int, children.split())) - {child, self._shell.pid}:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    alive.append(pid)
        return alive

    def end_adopted(self) -> None:
        """Kill adopted processes, and the orphans that their death adds, for at most a second."""
        deadline = time.monotonic() + 1.0
        while (alive := self.reap_adopted()) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(PermissionError):  # another user's, as of sudo
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def close(self) -> None:
        """End the guardian; it first kills the group that it watches, if any."""
        self._shell.send_signal(signal.SIGCONT)  # it may be paused
        self._shell.communicate()


def die_with(parent: int) -> None:
    """Make this process, a fork of `parent`, end when `parent` ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the death signal was set
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    # prctl is variadic in C, so all arguments must be passed, each as a long.
    ctypes.CDLL(None).prctl(option, *(ctypes.c_ulong(n) for n in (value, 0, 0, 0)))
