"""Whether a process that ended gets another start, how soon, and when to give up on it.

how it ended                                        what follows
--------------------------------------------------  ------------------------------------------------
0                                                   done
75, a signal that nobody asked for, hung            again; failed after `max_restarts` restarts in a
                                                    row that brought no first heartbeat
1 (an exception that nobody caught), too much       again; failed at the `max_crashes`-th in a row
memory, the signals of a crash (SEGV, ABRT, BUS,      with no life of `healthy_s` in between
FPE, ILL, SYS)
2, 70, every other code                             failed

The delay before a start begins at `first_delay_s` and doubles up to `longest_delay_s`. It is back
at the first after a life of `healthy_s`, and for who is to try again after he had worked: nothing
was wrong with him. A restart that a person asked for counts nowhere.
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import NamedTuple

from a3c.errors import EXIT_OK, EXIT_RETRY

EXIT_EXCEPTION = 1  # what Python leaves with after an exception that nobody caught

CRASH_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSYS,
    }
)


class Verdict(Enum):
    """What the end of a process says about it."""

    DONE = "done"
    RETRY = "retry"
    CRASH = "crash"
    FAILED = "failed"


class Limits(NamedTuple):
    """How much patience a keeper has."""

    max_restarts: int = 100
    max_crashes: int = 5
    first_delay_s: float = 0.5
    longest_delay_s: float = 5.0
    healthy_s: float = 60.0


class Decision(NamedTuple):
    """What to do after an end: start again after `delay_s`, or not at all."""

    again: bool
    delay_s: float
    first_of_row: bool  # nothing failed since the process last worked


def judge(code: int, reason: str | None = None) -> Verdict:
    """The verdict on an exit code, negative for the signal that ended the process.

    `reason` is why its keeper ended it, if it did: then the code says nothing.
    """
    if reason == "memory":
        return Verdict.CRASH
    if reason in ("heartbeat", "start-timeout"):
        return Verdict.RETRY
    if code == EXIT_OK:
        return Verdict.DONE
    if code == EXIT_EXCEPTION or -code in CRASH_SIGNALS:
        return Verdict.CRASH
    if code == EXIT_RETRY or code < 0:
        return Verdict.RETRY
    return Verdict.FAILED


class Patience:
    """Counts failures in a row and lets the delay between starts grow."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._delay_s = limits.first_delay_s
        self._failures = 0
        self._crashes = 0

    def decide(self, verdict: Verdict, lived_s: float, beat: bool) -> Decision:
        """Take note of a failed life, and say whether another one follows."""
        self._forgive(verdict, lived_s, beat)
        first_of_row = self._failures == 0 and self._crashes == 0
        self._failures += 1
        self._crashes += verdict is Verdict.CRASH
        again = (
            verdict in (Verdict.RETRY, Verdict.CRASH)
            and self._failures <= self._limits.max_restarts
            and self._crashes < self._limits.max_crashes
        )
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, self._limits.longest_delay_s)
        return Decision(again, delay_s, first_of_row)

    def _forgive(self, verdict: Verdict, lived_s: float, beat: bool) -> None:
        healthy = lived_s >= self._limits.healthy_s
        if healthy:
            self._crashes = 0
        if healthy or beat:
            self._failures = 0
        if healthy or (beat and verdict is Verdict.RETRY):
            self._delay_s = self._limits.first_delay_s
