"""Supervise one process: start it, watch its heartbeat, restart it, and end it with the keeper.

`python -m a3c.keeper.keeper SPEC`, the command line that `a3c.keeper.spec` makes, is used in tmux
panes, child mode, containers and on ssh hosts. It imports neither TensorFlow nor NumPy.

event                            what the keeper does
-------------------------------  ------------------------------------------------------------------
the process ends                 see the table in `a3c.keeper.restarts`
no first heartbeat, or silence   TERM to the group, KILL after two seconds, restart
too much memory                  TERM to the group, KILL after the grace time, restart
SIGTERM, SIGINT                  TERM to the group, KILL after the grace time; exit. If a SIGINT is
                                 not the first of these: KILL
SIGQUIT                          KILL to the group at once; exit
SIGHUP (terminal, pane closed)   like a first SIGTERM, never like a second; ignored under nohup
its parent ends                  like SIGHUP, if `parent` was given
SIGUSR1                          TERM, KILL after the grace time, restart without delay
SIGKILL                          the process and its group are killed with it (`a3c.keeper.spawn`)

The keeper exits with the last exit code of the process, 128+n for signal n.
"""

import dataclasses
import errno
import os
import select
import signal
import sys
import time
from pathlib import Path
from signal import SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1
from typing import Any

from a3c.errors import EXIT_OK, EXIT_RETRY, EXIT_USAGE, UserError
from a3c.keeper import namespaces
from a3c.keeper.capture import Capture, Echo, Tail
from a3c.keeper.restarts import RestartPolicy, classify_exit
from a3c.keeper.spawn import Child, Guardian
from a3c.keeper.spec import KeeperSpec, parse
from a3c.process import heartbeat, process_records
from a3c.process.environment import is_unwanted
from a3c.process.process_records import Identity, LastExit, ProcessRecord, keeper_lives, now_text

_TICK_S = 0.25
_HUNG_GRACE_S = 2.0  # shorter than the grace time: a hung process rarely reacts to TERM


class Keeper:
    """Supervises one process; `run` handles all signals and children of this process."""

    def __init__(self, spec: KeeperSpec) -> None:
        self._spec = spec
        self._policy = RestartPolicy(spec.limits)
        self._child: Child | None = None
        self._start_at = self._ticked = time.monotonic()
        self._stopping = False
        self._times_asked = 0
        self._last_status = EXIT_OK
        self._last_failure = ""
        self._exit_status: int | None = None
        self._record = ProcessRecord(
            name=spec.name,
            role=spec.role,
            task=spec.task,
            address=spec.address,
            restarts=spec.restarts,
            keeper=process_records.identify(os.getpid()) or Identity(os.getpid(), 0.0),
            log=str(Path(spec.log).absolute()),
            heartbeat=None if spec.heartbeat is None else str(spec.heartbeat.absolute()),
            argv=spec.argv,
        )
        self._saved: ProcessRecord | None = None
        self._saved_at = 0.0
        self._save_failed = False

    def run(self) -> int:
        """Supervise the process until it is done, failed or stopped; returns the exit status.

        Needs the main thread of a process with no other threads or children. Raises UserError if
        another keeper holds the record or the files can't be written.
        """
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass  # a standard stream was closed: no other file may get its number
        os.close(fd)
        found = process_records.read_record(self._spec.record)
        if found and found.host == process_records.this_host() and keeper_lives(found):
            keeper = f"a keeper, pid {found.keeper.pid} ({self._spec.record})"
            what = f"{found.name} already has {keeper}"
            raise UserError(f"{what}: stop that run, or start this one in another directory")
        self._capture = _open_output(self._spec)
        if self._spec.namespace:
            namespaces.join(self._spec.namespace)
        self._guardian = Guardian()
        try:
            # Signals become bytes on a pipe, so that none is lost and none interrupts other work.
            wake, sink = os.pipe()
            for fd in (wake, sink):
                os.set_blocking(fd, False)
            signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
            for signum in (SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGCHLD):
                if not (signum == SIGHUP and signal.getsignal(signum) == signal.SIG_IGN):
                    signal.signal(signum, lambda *_: None)
            try:
                process_records.write_json(self._spec.record, self._record, durable=False)
            except OSError as error:
                _raise_unless_full(error, self._spec.record)
            while self._exit_status is None:
                self._wait_and_handle(wake)
        finally:
            self._guardian.close()
            if self._capture.echo:
                self._capture.echo.flush(timeout_s=0.5)
        return self._exit_status

    def _wait_and_handle(self, wake: int) -> None:
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
        if child := self._child:
            child.read()
            code = child.collect()
            if code is not None:
                self._guardian.end_adopted()
                child.close()
                self._child = None
                self._guardian.watch(0)
                lived_s = time.monotonic() - child.started_at
                self._decide(code, child.reason, lived_s, child.heartbeat.has_beat)
        elif self._exit_status is None and time.monotonic() >= self._start_at:
            self._start()
        if time.monotonic() - self._ticked >= _TICK_S:
            self._tick()

    def _on_signal(self, signum: int) -> None:
        if self._exit_status is not None:
            return
        if signum == SIGUSR1 and not self._stopping:
            if self._child is None:
                self._start_at = time.monotonic()
            else:
                self._save(state="restarting")
                self._child.end("restart", self._spec.grace_s)
        elif signum == SIGQUIT:
            self._stop("stop", now=True)
        elif signum == SIGHUP:
            self._stop("hangup")
        elif signum in (SIGTERM, SIGINT):
            self._times_asked += 1
            # Not at a second SIGTERM: a machine that goes down and our launcher send one each.
            self._stop("stop", now=signum == SIGINT and self._times_asked > 1)

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

    def _start(self) -> None:
        spec = self._spec
        restarts = self._record.restarts + (self._record.last_exit is not None)
        self._change(restarts=restarts)
        self._capture.tail = Tail()
        environment = {n: v for n, v in os.environ.items() if not is_unwanted(n)} | spec.environment
        if spec.heartbeat is not None:
            environment[heartbeat.VARIABLE] = str(spec.heartbeat.absolute())
        try:
            child = Child(spec, environment, self._capture.feed)
        except OSError as error:
            what = f"{spec.argv[0]!r}" + (f" in {spec.directory}" if spec.directory else "")
            self._capture.note(f"{spec.name}: cannot start {what}: {error.strerror}")
            is_temporary = error.errno in (errno.EAGAIN, errno.ENOMEM)
            code = EXIT_RETRY if is_temporary else 127  # as in shells
            self._decide(code, None, 0.0, False)
            return
        self._child = child
        self._guardian.watch(child.pid)
        again = f", restart {restarts}" if restarts else ""
        self._capture.note(f"{spec.name} runs as pid {child.pid}{again}")
        seen = process_records.identify(child.pid)  # None if it has ended already
        self._save(
            pid=child.pid,
            create_time=seen.create_time if seen else None,
            birth=seen.birth if seen else None,
            state="starting" if spec.heartbeat else "running",
            started_at=now_text(),
        )

    def _decide(self, code: int, reason: str | None, lived_s: float, has_beat: bool) -> None:
        self._last_status = code if code >= 0 else 128 - code
        signal_name = None
        if code < 0:  # a real-time signal has no name
            signal_name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
        last_exit = LastExit(None if signal_name else code, signal_name, now_text(), reason)
        self._change(pid=None, create_time=None, birth=None, last_exit=last_exit)
        how = f"{self._spec.name} {last_exit}"
        kind = classify_exit(code, reason)
        is_needed = self._spec.role == "ps" or (self._spec.role, self._spec.task) == ("worker", 0)
        was_ended = code - 128 in (SIGHUP, SIGINT, SIGTERM) and reason is None  # by another program
        if was_ended and is_needed:
            kind = "retry"
        if self._stopping:
            self._leave("stopped", self._last_status, how)
        elif reason == "restart":
            self._start_again_after(0.0, how)
        elif kind == "done":
            self._leave("done", EXIT_OK, how)
        else:
            decision = self._policy.decide(kind, lived_s, has_beat)
            if decision.is_first_failure or how != self._last_failure:
                self._last_failure = how
                self._change(first_error=tuple(self._capture.tail.lines()))
            if decision.again:
                self._start_again_after(decision.delay_s, how)
            else:
                self._leave("failed", self._last_status or EXIT_RETRY, how)

    def _start_again_after(self, delay_s: float, how: str) -> None:
        self._start_at = time.monotonic() + delay_s
        self._capture.note(f"{how}; starts again in {delay_s:g} s")
        self._save(state="restarting")

    def _leave(self, state: str, status: int, how: str = "") -> None:
        self._capture.note(f"{how or self._spec.name}: {state}")
        self._exit_status = status
        self._save(state=state)

    def _tick(self) -> None:
        """Check the parent, the heartbeat, memory and the record; runs four times a second."""
        now = time.monotonic()
        elapsed_s, self._ticked = now - self._ticked, now
        if self._spec.parent not in (None, os.getppid()) and not self._stopping:
            self._stop("parent")
        if self._child is not None:
            self._guardian.reap_adopted(self._child.pid)
            if self._child.tick():
                self._capture.note(f"{self._spec.name} did not end, and is killed")
            self._check_health(self._child, elapsed_s)
        is_stale = tuple(self._capture.tail.lines()) != self._record.output_tail
        if now - self._saved_at >= 1.0 and (is_stale or self._saved != self._record):
            self._save()

    def _change(self, **changes: Any) -> None:
        """Change the record in memory; the next `_save` writes it."""
        self._record = dataclasses.replace(self._record, **changes)

    def _save(self, **changes: Any) -> None:
        """Write the record; a failed write is tried again every second."""
        tail = tuple(self._capture.tail.lines())
        self._change(**changes, output_tail=tail, updated_at=now_text())
        self._saved_at = time.monotonic()
        try:
            process_records.write_json(self._spec.record, self._record, durable=False)
            self._saved = self._record
        except OSError as error:
            if not self._save_failed:
                self._save_failed = True
                what = f"cannot write {self._spec.record.name}"
                self._capture.note(f"{what}: {error.strerror}; trying again")

    def _check_health(self, child: Child, elapsed_s: float) -> None:
        spec, is_first = self._spec, child.heartbeat.check(elapsed_s)
        if child.reason is not None:
            return
        if is_first:
            self._save(state="running")
        limit_s = spec.heartbeat_timeout_s if child.heartbeat.has_beat else spec.start_timeout_s
        used_mb = process_records.resident_bytes(child.pid) / 1e6 if spec.max_memory_mb else 0.0
        if spec.heartbeat and 0 < limit_s <= child.heartbeat.silence_s:
            reason = "heartbeat" if child.heartbeat.has_beat else "start-timeout"
            why, grace_s = f"gave no heartbeat for {limit_s:g} s", min(spec.grace_s, _HUNG_GRACE_S)
        elif used_mb > spec.max_memory_mb:
            why = f"takes {used_mb:.0f} MB of memory, more than {spec.max_memory_mb:g}"
            reason, grace_s = "memory", spec.grace_s
        else:
            return
        self._capture.note(f"{spec.name} {why}, and is ended")
        self._save(state="restarting")
        child.end(reason, grace_s)


def _open_output(spec: KeeperSpec) -> Capture:
    """Create the missing directories and files, accessible to their owner only."""
    for path in filter(None, (spec.record, Path(spec.log), spec.heartbeat)):
        directory = path.absolute().parent
        try:
            for part in (*reversed(directory.parents), directory):
                if not part.exists():
                    part.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            what = f"cannot make {directory}"
            raise UserError(f"{what}: {error.strerror}; give another directory") from error
    capture = Capture(Path(spec.log), Echo(1) if spec.echo else None)
    try:
        capture.open_log()
    except OSError as error:
        _raise_unless_full(error, Path(spec.log))
    return capture


def _raise_unless_full(error: OSError, path: Path) -> None:
    """Raise UserError for an error on `path`, unless the disk is full, which may be temporary."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = error.filename or path
        raise UserError(f"cannot write {where}: {error.strerror}; give another file") from error


def main() -> int:
    try:
        return Keeper(parse(sys.argv[1])).run()
    except UserError as error:
        sys.stderr.write(f"keeper: {error}\n")
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
