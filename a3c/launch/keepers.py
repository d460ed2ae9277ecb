"""Watch, end and restart the keepers of a run; each keeper supervises one process.

In child mode the keepers are children of this process. In tmux mode they run in panes, and this
process sees only the records that they write. A keeper that exits by itself records the reason. The
process of a killed keeper dies with it, and the keeper is restarted under the same limits as a
process that crashes.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from a3c.cluster import plan as planning
from a3c.cluster.plan import Plan, Process
from a3c.errors import EXIT_FATAL, EXIT_OK
from a3c.keeper.restarts import Limits, Patience, Verdict
from a3c.launch.scaling import Newcomers
from a3c.process import process_records
from a3c.process.process_records import Identity, ProcessRecord
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

FIRST_RECORD_S = 30.0
LOOK_INTERVAL_S = 1.0


class Keepers(Protocol):
    """The keepers of a run, by process name."""

    def exit_code(self, name: str) -> int | None:
        """The exit code of a keeper; None while it runs."""

    def end(self, name: str, *, now: bool) -> None:
        """Ask a keeper to end its process and exit, at once if `now`."""

    def is_killed(self, name: str) -> bool:
        """Whether a keeper was killed, so that it recorded no end."""

    def start_again(self, process: Process, restarts: int) -> None:
        """Start a new keeper for a process whose keeper was killed."""


class ChildKeepers:
    """Keepers as children of this process, each in a separate session.

    The separate sessions keep Ctrl-C in the terminal from reaching them directly; the launcher ends
    them in order instead. With `echo` the output of their processes is also printed here.
    """

    def __init__(self, run: RunDir, *, echo: bool = False) -> None:
        self._run = run
        self._echo = echo
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, processes_: Iterable[Process]) -> None:
        """Start a keeper for each process; the keepers end when this process ends."""
        for process in processes_:
            self.start_again(process, restarts=0)

    def start_again(self, process: Process, restarts: int) -> None:
        """Start a keeper; `restarts` counts the previous restarts of its process."""
        command = planning.keeper_command(
            process, self._run, parent=os.getpid(), restarts=restarts, echo=self._echo
        )
        self._children[process.name] = subprocess.Popen(
            command,
            env=planning.keeper_environment(),
            stdin=subprocess.DEVNULL,
            stdout=None if self._echo else subprocess.DEVNULL,
            start_new_session=True,
        )

    def is_killed(self, name: str) -> bool:
        """Whether a signal killed a keeper; it handles other signals than SIGKILL as requests."""
        return (self._children[name].poll() or 0) < 0

    def exit_code(self, name: str) -> int | None:
        """The exit code of a keeper; None while it runs, 0 if it was told to end."""
        code = self._children[name].poll()
        if code is None or code == EXIT_OK:
            return code
        if code < 0:
            return 128 - code
        record = process_records.read_record(self._run.record(name))
        return EXIT_OK if record and record.state == "stopped" else code

    def end(self, name: str, *, now: bool) -> None:
        """Ask a keeper to end its process and exit, at once if `now`."""
        if self._children[name].poll() is None:
            self._children[name].send_signal(signal.SIGQUIT if now else signal.SIGTERM)


class RecordedKeepers:
    """Keepers that another process started, known here only by their records.

    `restart` starts a keeper again; without it no keeper is restarted.
    """

    def __init__(self, run: RunDir, restart: Callable[[Process, int], None] | None = None) -> None:
        self._run = run
        self._restart = restart
        self._since = time.monotonic()
        self._begun: dict[str, float] = {}
        self._replaced: dict[str, tuple[Identity, float]] = {}

    def exit_code(self, name: str) -> int | None:
        """The exit code of a keeper; None while it runs, a failure if it was killed."""
        record = process_records.read_record(self._run.record(name))
        if record is None:
            since = self._begun.get(name, self._since)
            late = time.monotonic() - since > FIRST_RECORD_S
            return EXIT_FATAL if late else None
        state = self._state(record)
        if state in ("done", "stopped"):
            return EXIT_OK
        if state not in ("failed", process_records.DEAD):
            return None
        last = record.last_exit
        return last.code if state == "failed" and last and last.code else EXIT_FATAL

    def is_killed(self, name: str) -> bool:
        """Whether a keeper is dead although its record says that it runs."""
        record = process_records.read_record(self._run.record(name))
        return record is not None and self._state(record) == process_records.DEAD

    def _state(self, record: ProcessRecord) -> str:
        """The state of a process; "starting" until a restarted keeper has written its record."""
        replaced = self._replaced.get(record.name)
        if replaced and replaced[0] == record.keeper:
            late = time.monotonic() - replaced[1] > FIRST_RECORD_S
            return process_records.DEAD if late else "starting"
        return process_records.live_state(record)

    def start_again(self, process: Process, restarts: int) -> None:
        """Call `restart` for a process; `restarts` counts its previous restarts."""
        record = process_records.read_record(self._run.record(process.name))
        self._begun[process.name] = time.monotonic()
        if record:
            self._replaced[process.name] = (record.keeper, time.monotonic())
        if self._restart:
            self._restart(process, restarts)

    def end(self, name: str, *, now: bool) -> None:
        """Ask a keeper to end its process and exit, at once if `now`."""
        record = process_records.read_record(self._run.record(name))
        if record:
            process_records.terminate(record, now=now)


class Revival:
    """Restarts keepers that were killed, until `stop`.

    A keeper that is killed repeatedly is given up, like a process that crashes repeatedly.
    """

    def __init__(
        self, plan: Plan, keepers: Keepers, run: RunDir, limits: Limits | None = None
    ) -> None:
        self._keepers = keepers
        self._run = run
        self._processes = {process.name: process for process in plan.processes}
        self._limits = limits or Limits()
        self._patience = {name: Patience(self._limits) for name in self._processes}
        self._started = dict.fromkeys(self._processes, time.monotonic())
        self._newcomers = Newcomers(run)
        self._due: dict[str, float] = {}
        self._given_up: set[str] = set()
        self._over = False
        self._looked_at = -math.inf

    def exit_code(self, name: str) -> int | None:
        """The exit code of a keeper; None while it runs or is about to be restarted."""
        code = self._keepers.exit_code(name)
        if code is None or not self._keepers.is_killed(name) or self._over:
            return code
        return code if name in self._given_up else None

    def end(self, name: str, *, now: bool) -> None:
        """Ask a keeper to end its process and exit, at once if `now`."""
        self._keepers.end(name, now=now)

    def stop(self) -> None:
        """Restart no keeper from now on, because the run is ending."""
        self._over = True

    def poll(self) -> list[str]:
        """Restart the keepers that are due, start added workers, and return the names of these.

        Acts at most once a second, because in tmux mode each poll reads many files.
        """
        if time.monotonic() - self._looked_at < LOOK_INTERVAL_S:
            return []
        self._looked_at = time.monotonic()
        for name, process in self._processes.items():
            if self._over or name in self._given_up or not self._keepers.is_killed(name):
                continue
            now = time.monotonic()
            if name not in self._due:
                self._decide(name, now)
            elif now >= self._due[name]:
                del self._due[name]
                self._started[name] = now
                self._keepers.start_again(process, self._restarts(name) + 1)
        return [] if self._over else [self._welcome(new) for new in self._newcomers.take()]

    def _welcome(self, process: Process) -> str:
        """Start a keeper for a worker that is new, or that had left the run."""
        name = process.name
        log.info("%s comes in, at %s", name, process.address)
        self._processes[name] = process
        self._patience[name] = Patience(self._limits)
        self._started[name] = time.monotonic()
        self._given_up.discard(name)
        self._keepers.start_again(process, restarts=0)
        return name

    def _decide(self, name: str, now: float) -> None:
        lived_s = now - self._started[name]
        decision = self._patience[name].decide(Verdict.CRASH, lived_s, beat=False)
        if decision.again:
            log.warning(
                "the keeper of %s was killed; it starts again in %g s", name, decision.delay_s
            )
            self._due[name] = now + decision.delay_s
        else:
            log.error("the keeper of %s is killed again and again: given up", name)
            self._given_up.add(name)

    def _restarts(self, name: str) -> int:
        record = process_records.read_record(self._run.record(name))
        return record.restarts if record else 0
