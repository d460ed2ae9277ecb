"""Supervise a run: detect failures and end its processes in order, in every mode."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from a3c.cluster.plan import Plan
from a3c.errors import EXIT_FATAL, EXIT_OK
from a3c.launch.keepers import Revival
from a3c.process import process_records
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

POLL_S = 0.2
WORKER_LINGER_S = 12.0  # after the chief has exited
AFTER_PS_S = 4.0  # after the ps have exited too, which wait for all running workers
PS_LINGER_S = 20.0  # after the last worker has exited
EVALUATOR_LINGER_S = 600.0  # the evaluator plays the last checkpoint and records a video


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code, and the process whose failure ended it, if any."""

    exit_code: int
    failed: str | None = None
    stopped: bool = False

    @property
    def state(self) -> str:
        """The value of `state` in `summary.json`."""
        return "failed" if self.failed else "stopped" if self.stopped else "done"


class Supervisor:
    """Waits for a run to end, and then ends its remaining processes in order."""

    def __init__(
        self,
        plan: Plan,
        keepers: Revival,
        on_poll: Callable[[], None],
        asked: Callable[[], int] = lambda: 0,
    ) -> None:
        """`asked` returns a signal that arrived before `run` installed its handlers, or 0."""
        self._asked = asked
        self._keepers = keepers
        self._on_poll = on_poll
        self._workers = [p.name for p in plan.of_role("worker")]
        self._servers = [p.name for p in plan.of_role("ps")]
        self._evaluators = [p.name for p in plan.of_role("evaluator")]
        self._others = [p.name for p in plan.of_role("tensorboard")]
        self._signals = 0
        self._signal = 0
        self._woken = threading.Event()

    def run(self) -> Outcome:
        """Return when all processes have ended; Ctrl-C and SIGTERM end them in order."""
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {s: signal.signal(s, self._on_signal) for s in handled}
        try:
            if before := self._asked():
                self._on_signal(before, None)
            outcome = self._watch()
            self._keepers.stop()
            self._stop()
            return outcome
        except BaseException:
            self._end(self._all(), now=True)
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals += 1
        self._signal = number
        self._woken.set()

    def _all(self) -> list[str]:
        return [*self._evaluators, *self._others, *self._workers, *self._servers]

    def _watch(self) -> Outcome:
        """Wait until the run is over, has failed, or is asked to stop."""
        while not self._signals:
            failed = self._failure()
            if failed:
                return Outcome(self._keepers.exit_code(failed) or EXIT_FATAL, failed=failed)
            if self._keepers.exit_code(self._workers[0]) == EXIT_OK:
                self._keepers.stop()
                # The chief has ended the run. A worker that starts late would wait for it forever.
                self._wait(self._workers, WORKER_LINGER_S, in_vain=AFTER_PS_S)
                self._wait(self._servers, PS_LINGER_S)
                self._wait(self._evaluators, EVALUATOR_LINGER_S)
                return Outcome(EXIT_OK)
            if any(self._keepers.exit_code(name) == EXIT_OK for name in self._servers):
                # The chief is exiting too, or a user ended a ps, which then waits for no worker.
                self._wait(self._workers[:1], WORKER_LINGER_S)
                if self._keepers.exit_code(self._workers[0]) != EXIT_OK:
                    return Outcome(EXIT_OK)
                continue
            self._pause()
        log.info("stopping: workers, last checkpoint, ps (once more to stop at once)")
        return Outcome(128 + self._signal, stopped=True)

    def _failure(self) -> str | None:
        """A failed process that the run needs: a ps, the chief, or one worker if all failed."""
        codes = {name: self._keepers.exit_code(name) for name in [*self._servers, *self._workers]}
        lost = [name for name, code in codes.items() if code not in (None, EXIT_OK)]
        needed = [name for name in lost if name in (*self._servers, self._workers[0])]
        if needed:
            return needed[0]
        return lost[0] if lost and set(self._workers) <= set(lost) else None

    def _stop(self) -> None:
        """End the remaining processes: the workers, then the chief, which saves, then the ps."""
        seen = self._signals
        groups = (self._others + self._evaluators + self._workers[1:], self._workers[:1])
        for group in (*groups, self._servers):
            self._end(group)
            while not self._ended(group):
                if self._signals > seen:
                    seen = self._signals
                    self._end(self._all(), now=True)
                self._pause()

    def _end(self, names: Iterable[str], now: bool = False) -> None:
        for name in names:
            if self._keepers.exit_code(name) is None:
                self._keepers.end(name, now=now)

    def _ended(self, names: Sequence[str]) -> bool:
        return all(self._keepers.exit_code(name) is not None for name in names)

    def _wait(self, names: Sequence[str], timeout_s: float, *, in_vain: float = math.inf) -> None:
        """Wait for their end, at most `timeout_s`, or `in_vain` seconds after the ps have ended."""
        deadline = time.monotonic() + timeout_s
        while not self._ended(names) and time.monotonic() < deadline and not self._signals:
            if self._ended(self._servers):
                deadline = min(deadline, time.monotonic() + in_vain)
            self._pause()

    def _pause(self) -> None:
        self._workers += [name for name in self._keepers.poll() if name not in self._workers]
        self._on_poll()
        self._woken.wait(POLL_S)
        self._woken.clear()


def first_error(run: RunDir, name: str) -> list[str]:
    """The last lines of a process's first failure."""
    record = process_records.read_record(run.record(name))
    return list(record.first_error or record.output_tail) if record else []
