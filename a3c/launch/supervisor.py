"""Supervise a run: restart killed keepers, detect failures, and end the processes in order.

In child mode the keepers are children of this process. In tmux mode they run in panes, and this
process sees only their records. The process of a killed keeper dies with it, and the keeper is
restarted under the same limits as a process that crashes.
"""

import contextlib
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from a3c.cluster.plan import Plan, keeper_command
from a3c.cluster.topology import CHIEF
from a3c.errors import EXIT_FATAL, EXIT_OK, UserError
from a3c.keeper.restarts import Limits, RestartPolicy
from a3c.keeper.spec import Process
from a3c.process import process_records
from a3c.process.environment import code_environment
from a3c.process.process_records import Identity, ProcessRecord
from a3c.process.signals import SAME_WITHIN_S, not_ignored
from a3c.run import callbacks
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

LIMITS = Limits()
POLL_S = 0.2
RESTART_POLL_S = 1.0  # in tmux mode each poll reads many files
WORKER_LINGER_S = 12.0  # after the chief has exited
# After a ps has exited: the chief waits for its callbacks, then 3 s for its environments.
CHIEF_LINGER_S = callbacks.CLOSE_WITHIN_S + 5.0
AFTER_PS_S = 4.0  # once the ps, which first wait for attached workers, have exited too
PS_LINGER_S = 20.0  # after the last worker has exited
EVALUATOR_LINGER_S = 600.0  # the evaluator plays the last checkpoint and records a video


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code, and the process whose failure ended it, if any."""

    exit_code: int
    failed: str | None = None
    stopped: bool = False


class Interruption:
    """A context in which SIGINT, SIGTERM and SIGHUP are counted instead of ending this process.

    It starts before the run is supervised and lasts until the summary is written. A signal also
    ends `script`, if one is running; a second signal kills it. SIGHUP stays ignored under nohup.
    SIGINT is handled even if it was ignored, as shells do for a script's `&` jobs, because scripts
    end runs with it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.signal = 0  # the last one
        self._came_at = -math.inf
        self.script: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        numbers = not_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        now, before = time.monotonic(), self._came_at
        if signal.SIGINT not in (number, self.signal) and now - before < SAME_WITHIN_S:
            return  # `timeout` may send one twice; the end of a session sends TERM and HUP
        self.count += 1
        self.signal, self._came_at = number, now
        if self.script is not None:
            self.script.send_signal(signal.SIGTERM if self.count == 1 else signal.SIGKILL)
            self.script.send_signal(signal.SIGCONT)  # it may be paused

    def came(self) -> bool:
        return self.count > 0


class ChildKeepers:
    """Keepers as children of this process, which end with it.

    Each has a separate session, so that Ctrl-C in the terminal doesn't reach it before the launcher
    ends all in order. With `echo` the output of their processes is also printed here.
    """

    def __init__(self, run: RunDir, processes: Iterable[Process], *, echo: bool = False) -> None:
        self._run = run
        self._echo = echo
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        for process in processes:
            self.start_again(process, restarts=0)

    def start_again(self, process: Process, restarts: int) -> None:
        """Start a keeper; `restarts` counts the previous restarts of its process."""
        command = keeper_command(
            process, self._run, parent=os.getpid(), restarts=restarts, echo=self._echo
        )
        self._children.pop(process.name, None)
        try:
            self._children[process.name] = subprocess.Popen(
                command,
                env=code_environment(),
                stdin=subprocess.DEVNULL,
                stdout=None if self._echo else subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:  # such as too many processes; it counts as killed
            log.error("the keeper of %s can't start (%s)", process.name, error.strerror)

    def state_of(self, name: str) -> tuple[int | None, bool]:
        """The exit code of a keeper, and whether it was killed; None while it runs.

        The code is 0 if it was told to end, such as by SIGTERM.
        """
        if name not in self._children:
            return EXIT_FATAL, True
        code = self._children[name].poll()
        if not code:
            return code, False
        if code < 0:
            return 128 - code, True
        record = process_records.read_record(self._run.record(name))
        state = record.state if record and record.keeper.pid == self._children[name].pid else None
        # On a full disk it can't record that it was asked to end.
        was_asked = state == "stopped" or (code == 128 + signal.SIGTERM and state != "failed")
        return EXIT_OK if was_asked else code, False

    def end(self, name: str, *, now: bool) -> bool:
        """Ask a keeper to end; returns True, because asking once is enough."""
        if child := self._children.get(name):
            child.send_signal(signal.SIGQUIT if now else signal.SIGTERM)
            child.send_signal(signal.SIGCONT)  # it may have been paused
        return True


class RecordedKeepers:
    """Keepers that another process started, known here only by their records."""

    def __init__(self, run: RunDir, restart: Callable[[Process, int], None]) -> None:
        self._run = run
        self._restart = restart
        self._began_at = time.monotonic()
        self._newest: dict[str, ProcessRecord] = {}
        self._replaced: dict[str, tuple[Identity | None, float]] = {}  # old keeper, time

    def _record(self, name: str) -> ProcessRecord | None:
        """The record; if it is gone, such as in a deleted directory, the last one that was read."""
        if record := process_records.read_record(self._run.record(name)):
            self._newest[name] = record
        return self._newest.get(name)

    def state_of(self, name: str) -> tuple[int | None, bool]:
        """The exit code and whether it was killed, as `ChildKeepers.state_of` returns them."""
        record = self._record(name)
        old, since = self._replaced.get(name, (None, self._began_at))
        if record is None or record.keeper == old:  # the newest keeper has written nothing yet
            is_late = time.monotonic() - since > process_records.FIRST_RECORD_S
            return EXIT_FATAL if is_late else None, is_late and record is not None
        state = process_records.live_state(record)
        if state == "failed":
            return (record.last_exit and record.last_exit.code) or EXIT_FATAL, False
        codes = {"done": EXIT_OK, "stopped": EXIT_OK, "dead": EXIT_FATAL}
        return codes.get(state), state == "dead"

    def start_again(self, process: Process, restarts: int) -> None:
        record = self._record(process.name)
        self._replaced[process.name] = (record.keeper if record else None, time.monotonic())
        try:
            self._restart(process, restarts)
        except (UserError, OSError) as error:  # such as no room for a pane; it counts as killed
            log.error("the keeper of %s can't start (%s)", process.name, error)

    def end(self, name: str, *, now: bool) -> bool:
        """Ask a keeper to end; False if no keeper runs by its record."""
        record = self._record(name)
        return record is not None and process_records.terminate(record, now=now)


Keepers = ChildKeepers | RecordedKeepers


@dataclass
class _Kept:
    process: Process
    policy: RestartPolicy = field(default_factory=lambda: RestartPolicy(LIMITS))
    started_at: float = field(default_factory=time.monotonic)  # of its keeper
    due_at: float | None = None  # when its keeper, which was killed, is restarted
    is_given_up: bool = False


class Supervisor:
    """Restarts killed keepers, waits for a run to end, and ends what is left in order."""

    def __init__(
        self,
        plan: Plan,
        keepers: Keepers,
        run: RunDir,
        interruption: Interruption,
        *,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        self._keepers, self._run = keepers, run
        self._interruption, self._on_poll = interruption, on_poll
        self._kept = {process.name: _Kept(process) for process in plan.processes}
        self._servers = [p.name for p in plan.of_role("ps")]
        self.is_over = False  # then no keeper is restarted any more
        self._asked: set[tuple[str, bool]] = set()  # a name and `now` for each request to end
        self._polled_at = -math.inf
        self._has_config = run.config.exists()  # False if another host has the run's files
        for path in run.wanted.glob("*"):  # from an earlier session
            path.unlink(missing_ok=True)

    def run(self) -> Outcome:
        """Return when all processes have ended; Ctrl-C and SIGTERM end them in order."""
        try:
            outcome = self._watch()
            self.is_over = True
            seen = min(1, self._interruption.count)
            for group in self._groups():
                while not self._ended(group):
                    now = self._interruption.count > seen
                    self._end(self._kept if now else group, now=now)
                    self._pause()
            return outcome
        except BaseException:
            self._end(self._kept, now=True)
            raise
        finally:
            self._interruption.count = self._interruption.signal = 0  # these signals were handled

    def _watch(self) -> Outcome:
        while not self._interruption.count:
            for name in (*self._servers, CHIEF):  # every ps and the chief are needed
                if code := self.exit_code(name):
                    return Outcome(code, name)
            if self.exit_code(CHIEF) == EXIT_OK:
                self.is_over = True
                # The chief has ended the run. A worker that starts late would wait for it forever.
                self._wait(self._of_role("worker"), WORKER_LINGER_S, without_ps_s=AFTER_PS_S)
                self._wait(self._servers, PS_LINGER_S)
                players = self._of_role("evaluator")
                if not self._ended(players):
                    log.info("waiting for the evaluator's last games (Ctrl-C ends them)")
                self._wait(players, EVALUATOR_LINGER_S)
                if self._interruption.came():
                    break
                if not self._ended(players):
                    late = f"{EVALUATOR_LINGER_S:g} s"
                    log.error("the evaluator is ended: its last games took more than %s", late)
                return Outcome(EXIT_OK)
            if any(self.exit_code(name) == EXIT_OK for name in self._servers):
                # The chief is exiting too, or a user ended a ps, which then waits for no worker.
                self._wait([CHIEF], CHIEF_LINGER_S)
                if self.exit_code(CHIEF) != EXIT_OK and not self._interruption.count:
                    return Outcome(EXIT_OK)
                continue
            self._pause()
        log.info("stopping: workers, last checkpoint, ps (a second signal stops at once)")
        return Outcome(128 + self._interruption.signal, stopped=True)

    def _groups(self) -> list[list[str]]:
        """The order of the end: the workers, then the chief, which saves, then the ps."""
        first = [name for name in self._kept if name not in (CHIEF, *self._servers)]
        return [first, [CHIEF], self._servers]

    def _of_role(self, role: str) -> list[str]:
        return [name for name, kept in self._kept.items() if kept.process.role == role]

    def _end(self, names: Iterable[str], now: bool = False) -> None:
        """Ask those keepers to end that still run and were not asked before."""
        for name in names:
            is_left = (name, now) not in self._asked and self.exit_code(name) is None
            if is_left and self._keepers.end(name, now=now):
                self._asked.add((name, now))

    def _ended(self, names: Iterable[str]) -> bool:
        return all(self.exit_code(name) is not None for name in names)

    def _wait(self, names: list[str], timeout_s: float, *, without_ps_s: float = math.inf) -> None:
        """Wait until these end: for `timeout_s` at most, or `without_ps_s` from the ps's end."""
        deadline = time.monotonic() + timeout_s
        while not (self._ended(names) or self._interruption.count) and time.monotonic() < deadline:
            if self._ended(self._servers):
                deadline = min(deadline, time.monotonic() + without_ps_s)
            self._pause()

    def _pause(self) -> None:
        """Restart what is due, show the run, and sleep."""
        self.poll()
        self._on_poll()
        time.sleep(POLL_S)

    def exit_code(self, name: str) -> int | None:
        """The exit code of a keeper; None while it runs or is about to be restarted."""
        code, is_killed = self._keepers.state_of(name)
        return code if self.is_over or self._kept[name].is_given_up or not is_killed else None

    def poll(self) -> None:
        """At most once a second, restart the keepers that are due, and start added workers."""
        now = time.monotonic()
        if self.is_over or now - self._polled_at < RESTART_POLL_S:
            return
        self._polled_at = now
        self._warn_if_gone()
        for name, kept in self._kept.items():
            if kept.is_given_up or not self._keepers.state_of(name)[1]:
                continue
            if kept.due_at is None:
                decision = kept.policy.decide("crash", now - kept.started_at, has_beat=False)
                kept.due_at, kept.is_given_up = now + decision.delay_s, not decision.again
                if decision.again:
                    again = f"it starts again in {decision.delay_s:g} s"
                    log.warning("the keeper of %s was killed; %s", name, again)
                else:
                    log.error("the keeper of %s was killed too often: it is not restarted", name)
                    self._record_failure(name)
            elif now >= kept.due_at:
                kept.due_at, kept.started_at = None, now
                record = process_records.read_record(self._run.record(name))
                self._keepers.start_again(kept.process, record.restarts + 1 if record else 1)
        with contextlib.suppress(OSError, UserError):  # an unreadable disk must not end the run
            for path in sorted(self._run.wanted.glob("worker-*")):
                path.unlink()  # raises if `add` has withdrawn it
                for process in Plan.load(self._run).of_role("worker"):
                    if process.name == path.name:
                        log.info("%s is added, at %s", process.name, process.address)
                        self._kept[process.name] = _Kept(process)
                        self._keepers.start_again(process, restarts=0)

    def _record_failure(self, name: str) -> None:
        """Mark the record as failed: a killed keeper leaves it as if the process still ran."""
        path = self._run.record(name)
        if record := process_records.read_record(path):
            with contextlib.suppress(OSError):
                failed = replace(record, state="failed", pid=None)
                process_records.write_json(path, failed, durable=False)

    def _warn_if_gone(self) -> None:
        with contextlib.suppress(OSError):
            if self._has_config and not self._run.config.exists():
                self._has_config = False
                log.warning("%s is gone: the run can't be resumed; end it", self._run.config)
