"""Child mode: a run in the foreground, its processes as children of this one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from a3c import plan as planning
from a3c import processes
from a3c.errors import EXIT_OK
from a3c.plan import Plan, Process
from a3c.rundir import RunDir

log = logging.getLogger(__name__)

POLL_S = 0.2
PS_LINGER_S = 20.0  # after the last worker has left


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code, and which process failed it, if one did."""

    exit_code: int
    failed: str | None = None
    stopped: bool = False


class Supervisor:
    """Starts every keeper of a plan, waits, and ends them in order."""

    def __init__(self, plan: Plan, run: RunDir, on_poll: Callable[[], None]) -> None:
        self._plan = plan
        self._run = run
        self._on_poll = on_poll
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._signals = 0
        self._signal = 0
        self._woken = threading.Event()

    def run(self) -> Outcome:
        """Start everything, and come back when all of it has ended."""
        previous = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            for process in self._plan.processes:
                if not self._signals:
                    self._start(process)
            return self._watch()
        finally:
            self._end(self._keepers, now=True)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals += 1
        self._signal = number
        self._woken.set()

    def _start(self, process: Process) -> None:
        """Start a keeper in a session of its own: Ctrl-C is passed on by the launcher, in order."""
        self._keepers[process.name] = subprocess.Popen(
            planning.keeper_command(process, self._run, parent=os.getpid()),
            env=planning.keeper_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _watch(self) -> Outcome:
        workers = [p.name for p in self._plan.of_role("worker")]
        servers = [p.name for p in self._plan.of_role("ps")]
        while True:
            if self._signals:
                return self._stop(workers, servers)
            failed = self._failure(workers, servers)
            if failed:
                return self._fail(failed, workers, servers)
            if self._all_ended(workers):
                self._wait(servers, PS_LINGER_S)
                self._end(servers)
                return Outcome(EXIT_OK)
            self._pause()

    def _failure(self, workers: Iterable[str], servers: Iterable[str]) -> str | None:
        """The process without which the run can't go on: a ps, the chief, or the last worker."""
        codes = {name: keeper.poll() for name, keeper in self._keepers.items()}
        needed = [*servers, "worker-0"]
        lost = [name for name in needed if codes[name] not in (None, EXIT_OK)]
        if not lost and all(codes[name] not in (None, EXIT_OK) for name in workers):
            lost = [next(iter(workers))]
        if not lost and all(codes[name] is not None for name in servers):
            return None  # the run is over, and the ps were quicker than the workers
        return lost[0] if lost else None

    def _fail(self, failed: str, workers: list[str], servers: list[str]) -> Outcome:
        code = self._keepers[failed].wait()
        self._stop(workers, servers)
        return Outcome(code, failed=failed)

    def _stop(self, workers: list[str], servers: list[str]) -> Outcome:
        """End the others, then the chief, which saves, then the ps; at once at a second signal."""
        if self._signals:
            log.info("stopping: workers, last checkpoint, ps (once more to stop at once)")
        seen = self._signals
        for group in (workers[1:], workers[:1], servers):
            self._end(group, now=self._signals > seen)
            while not self._all_ended(group):
                if self._signals > seen:
                    self._end(self._keepers, now=True)
                self._pause()
        return Outcome(128 + self._signal, stopped=True)

    def _end(self, names: Iterable[str], now: bool = False) -> None:
        for name in names:
            keeper = self._keepers.get(name)
            if keeper and keeper.poll() is None:
                keeper.send_signal(signal.SIGQUIT if now else signal.SIGTERM)
        if now:
            for name in names:
                if name in self._keepers:
                    self._keepers[name].wait()

    def _all_ended(self, names: Iterable[str]) -> bool:
        return all(self._keepers[n].poll() is not None for n in names if n in self._keepers)

    def _wait(self, names: Iterable[str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._all_ended(names) and time.monotonic() < deadline and not self._signals:
            self._pause()

    def _pause(self) -> None:
        self._on_poll()
        self._woken.wait(POLL_S)
        self._woken.clear()


def first_error(run: RunDir, name: str) -> list[str]:
    """The last lines of a process's first failure."""
    record = processes.read_record(run.record(name))
    return list(record.first_error or record.output_tail) if record else []
