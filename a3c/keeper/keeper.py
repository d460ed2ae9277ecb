"""Supervise one process: start it, watch its heartbeat, restart it, and end it with the keeper.

`python -m a3c.keeper --record FILE --name NAME --role ROLE --log FILE [options] -- ARGV...` is used
in tmux panes, child mode, containers and on ssh hosts. It imports neither TensorFlow nor NumPy.

event                            what the keeper does
-------------------------------  ------------------------------------------------------------------
the process ends                 see the table in `a3c.keeper.restarts`
no first heartbeat, or silence   TERM to the group, KILL after two seconds, restart
too much memory                  TERM to the group, KILL after the grace time, restart
SIGTERM, SIGINT                  TERM to the group, KILL after the grace time; exit. A second: KILL
SIGQUIT                          KILL to the group at once; exit
SIGHUP (terminal, pane closed)   like a first SIGTERM, never like a second; ignored under nohup
its parent ends                  like SIGHUP, if `--die-with-parent` was given
SIGUSR1                          TERM, KILL after the grace time, restart without delay
SIGKILL                          the process and its group are killed with it (`a3c.keeper.spawn`)

The keeper exits with the last exit code of the process, 128+n for signal n.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from a3c.errors import EXIT_OK, EXIT_RETRY, EXIT_USAGE, UserError
from a3c.keeper import network, spawn
from a3c.keeper.capture import Capture, Echo, LogFile
from a3c.keeper.child import Child
from a3c.keeper.record import RecordFile, now_text, raise_unless_full, refuse_second_keeper
from a3c.keeper.restarts import Patience, Verdict, judge
from a3c.keeper.spec import HEARTBEAT_VARIABLE, KeeperSpec, child_environment, command, parse
from a3c.process.process_records import LastExit, resident_bytes

__all__ = ["HEARTBEAT_VARIABLE", "Keeper", "KeeperSpec", "command", "main", "parse"]

_TICK_S = 0.25
_HUNG_GRACE_S = 2.0  # shorter than the grace time: a hung process rarely reacts to TERM
_EXIT_CANNOT_START = 127
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM)
_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGCHLD,
)


class Keeper:
    """Supervises one process; `run` handles all signals and children of this process."""

    def __init__(self, spec: KeeperSpec) -> None:
        self._spec = spec
        self._parent = os.getppid() if spec.parent == 0 else spec.parent
        self._patience = Patience(spec.limits)
        self._child: Child | None = None
        self._start_at = self._ticked = time.monotonic()
        self._stopping = False
        self._times_asked = 0
        self._last_status = EXIT_OK
        self._last_failure = ""
        self._exit_status: int | None = None

    def run(self) -> int:
        """Supervise the process until it is done, failed or stopped; returns the exit status.

        Call it from the main thread of a process with no other threads and no other children.
        Raises UserError if another keeper holds the record or the files can't be written.
        """
        _open_standard_streams()
        refuse_second_keeper(self._spec)
        self._capture = _open_output(self._spec)
        self._network = network.join(self._spec.network) if self._spec.network else None
        self._guardian = spawn.Guardian()
        spawn.adopt_orphans()
        try:
            with _signals_into_pipe() as wake:
                self._record = RecordFile(self._spec, self._capture)
                while self._exit_status is None:
                    self._turn(wake)
        finally:
            self._guardian.close()
            self._capture.close()
        return self._exit_status

    def _turn(self, wake: int) -> None:
        """Wait for the next event, at most until the next tick, and handle it."""
        child, echo = self._child, self._capture.echo
        output = child.readable if child else []
        room = [echo.fd] if echo and echo.pending else []
        wait_s = _TICK_S if child else min(_TICK_S, max(0.0, self._start_at - time.monotonic()))
        readable, writable, _ = select.select([wake, *output], room, [], wait_s)
        if wake in readable:
            for signum in os.read(wake, 1024):
                self._on_signal(signum)
        if writable and echo:
            echo.flush()
        if self._child is not None:
            self._attend(self._child)
        elif self._exit_status is None and time.monotonic() >= self._start_at:
            self._start()
        if time.monotonic() - self._ticked >= _TICK_S:
            self._tick()

    def _on_signal(self, signum: int) -> None:
        if self._exit_status is not None:
            return
        if signum == signal.SIGUSR1:
            self._restart_now()
        elif signum == signal.SIGQUIT:
            self._stop("stop", now=True)
        elif signum == signal.SIGHUP:
            self._stop("hangup")
        elif signum in (signal.SIGTERM, signal.SIGINT):
            self._times_asked += 1
            self._stop("stop", now=self._times_asked > 1)

    def _stop(self, reason: str, now: bool = False) -> None:
        if not self._stopping and self._child is not None:
            self._capture.note(f"{self._spec.name} is asked to end ({reason})")
        self._stopping = True
        if self._child is None:
            self._leave("stopped", self._last_status)
        elif now:
            self._child.kill(reason)
        else:
            self._child.end(reason, self._spec.grace_s)

    def _restart_now(self) -> None:
        if self._stopping:
            return
        if self._child is None:
            self._start_at = time.monotonic()
        else:
            self._record.update(state="restarting")
            self._child.end("restart", self._spec.grace_s)

    def _start(self) -> None:
        spec = self._spec
        restarts = self._record.now.restarts + (self._record.now.last_exit is not None)
        self._capture.forget()
        environment = child_environment(os.environ, spec)
        try:
            child = Child(
                spec.argv, environment, spec.cwd, spec.heartbeat, self._capture.feed, self._network
            )
        except OSError as error:
            where = f" in {spec.cwd}" if spec.cwd else ""
            self._capture.note(
                f"{spec.name}: cannot start {spec.argv[0]!r}{where}: {error.strerror}"
            )
            code = EXIT_RETRY if error.errno in _TRANSIENT else _EXIT_CANNOT_START
            self._record.change(restarts=restarts)
            self._after(code, None, 0.0, False)
            return
        self._child = child
        self._guardian.watch(child.pid)
        again = f", restart {restarts}" if restarts else ""
        self._capture.note(f"{spec.name} runs as pid {child.pid}{again}")
        self._record.update(
            pid=child.pid,
            create_time=child.identity.create_time if child.identity else None,
            birth=child.identity.birth if child.identity else None,
            state="starting" if spec.heartbeat else "running",
            restarts=restarts,
            started_at=now_text(),
        )

    def _attend(self, child: Child) -> None:
        """Read output and check whether the process has ended."""
        child.read()
        code = child.collect()
        if code is None:
            return
        spawn.end_adopted(known={self._guardian.pid})
        child.close()
        self._child = None
        self._guardian.watch(0)
        self._after(code, child.reason, child.lived_s, child.pulse.beat)

    def _after(self, code: int, reason: str | None, lived_s: float, beat: bool) -> None:
        """Decide what to do after the process has ended."""
        self._last_status = code if code >= 0 else 128 - code
        signal_name = _signal_name(-code) if code < 0 else None
        last_exit = LastExit(code if code >= 0 else None, signal_name, now_text(), reason)
        self._record.change(pid=None, create_time=None, birth=None, last_exit=last_exit)
        how = f"{self._spec.name} " + (
            f"ended by {signal_name}" if signal_name else f"left with {code}"
        )
        verdict = judge(code, reason)
        if self._stopping:
            self._leave("stopped", self._last_status, how)
        elif reason == "restart":
            self._again(how, 0.0)
        elif verdict is Verdict.DONE:
            self._leave("done", EXIT_OK, how)
        else:
            self._after_failure(verdict, how, lived_s, beat)

    def _after_failure(self, verdict: Verdict, how: str, lived_s: float, beat: bool) -> None:
        decision = self._patience.decide(verdict, lived_s, beat)
        if decision.first_of_row or how != self._last_failure:
            self._last_failure = how
            self._record.change(first_error=tuple(self._capture.tail()))
        if decision.again:
            self._again(how, decision.delay_s)
        else:
            self._leave("failed", self._last_status or EXIT_RETRY, how)

    def _again(self, how: str, delay_s: float) -> None:
        self._start_at = time.monotonic() + delay_s
        self._capture.note(f"{how}; starts again in {delay_s:g} s")
        self._record.update(state="restarting")

    def _leave(self, state: str, status: int, how: str = "") -> None:
        self._capture.note(f"{how or self._spec.name}: {state}")
        self._exit_status = status
        self._record.update(state=state)

    def _tick(self) -> None:
        """Check the parent, the heartbeat, memory and the record; runs four times a second."""
        now = time.monotonic()
        elapsed_s, self._ticked = now - self._ticked, now
        if self._parent is not None and os.getppid() != self._parent and not self._stopping:
            self._stop("parent")
        if self._child is not None:
            spawn.reap_adopted(known={self._guardian.pid, self._child.pid})
            self._watch(self._child, elapsed_s)
            self._weigh(self._child)
        self._record.tick()

    def _watch(self, child: Child, elapsed_s: float) -> None:
        """Check the heartbeat, and end the process if it has been silent for too long."""
        if child.tick():
            self._capture.note(f"{self._spec.name} did not end, and is killed")
        if self._spec.heartbeat is None:
            return
        if child.pulse.check(elapsed_s) and child.reason is None:
            self._record.update(state="running")
        reason = "heartbeat" if child.pulse.beat else "start-timeout"
        limit_s = self._spec.heartbeat_timeout_s if child.pulse.beat else self._spec.start_timeout_s
        if child.reason is None and 0 < limit_s <= child.pulse.silence_s:
            self._capture.note(
                f"{self._spec.name} gave no heartbeat for {limit_s:g} s, and is ended"
            )
            self._record.update(state="restarting")
            child.end(reason, min(self._spec.grace_s, _HUNG_GRACE_S))

    def _weigh(self, child: Child) -> None:
        """End the process if it uses more memory than allowed."""
        limit_mb = self._spec.max_memory_mb
        if not limit_mb or child.reason is not None:
            return
        used_mb = (resident_bytes(child.pid) or 0) / 1e6
        if used_mb > limit_mb:
            self._capture.note(
                f"{self._spec.name} takes {used_mb:.0f} MB of memory, more than {limit_mb:g}, "
                "and is ended"
            )
            self._record.update(state="restarting")
            child.end("memory", self._spec.grace_s)


def _open_standard_streams() -> None:
    """Open /dev/null for closed standard streams, so that no other file gets their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def _open_output(spec: KeeperSpec) -> Capture:
    """Create the missing directories and files, accessible to their owner only."""
    log = LogFile(spec.log)
    for path in (spec.record, spec.log, spec.heartbeat):
        if path is not None:
            _make_private(path.absolute().parent)
    try:
        log.open()
    except OSError as error:
        raise_unless_full(error, spec.log)
    return Capture(log, Echo(1) if spec.echo else None)


def _make_private(directory: Path) -> None:
    try:
        for path in (*reversed(directory.parents), directory):
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make {directory}: {error.strerror}; give another directory"
        ) from error


@contextlib.contextmanager
def _signals_into_pipe() -> Iterator[int]:
    """Turn signals into bytes on a pipe, so that none is lost and none interrupts other work."""
    wake, sink = os.pipe()
    for fd in (wake, sink):
        os.set_blocking(fd, False)
    previous = {s: signal.getsignal(s) for s in _SIGNALS}
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    for signum in _SIGNALS:
        if not (signum == signal.SIGHUP and previous[signum] == signal.SIG_IGN):
            signal.signal(signum, lambda *_: None)
    try:
        yield wake
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(-1)
        os.close(wake)
        os.close(sink)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a keeper from the command line."""
    spec = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return Keeper(spec).run()
    except UserError as error:
        sys.stderr.write(f"keeper: {error}\n")
        return EXIT_USAGE
