"""Decide whether to restart a process that ended, after which delay, and when to give up.

how it ended                                        what follows
--------------------------------------------------  ------------------------------------------------
0                                                   done
75, an unexpected signal, hung                      restart; failed after `max_restarts` restarts in
                                                    a row without a first heartbeat
1 (an uncaught exception), too much memory, the     restart; failed at the `max_crashes`-th crash in
signals of a crash (SEGV, ABRT, BUS, FPE, ILL,        a row without `healthy_s` of uptime in between
SYS)
2, 70, every other code                             failed

The delay before a restart begins at `first_delay_s` and doubles up to `longest_delay_s`. It resets
after an uptime of `healthy_s`. It also resets when a process that had worked ends with a result of
the second row (75, a signal, hung). A restart that a person requests doesn't count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS
from typing import NamedTuple

from a3c.errors import EXIT_CRASH, EXIT_OK, EXIT_RETRY

CRASH_SIGNALS = (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS)


class Verdict(Enum):
    """How the end of a process is classified."""

    DONE = "done"
    RETRY = "retry"
    CRASH = "crash"
    FAILED = "failed"


@dataclass(frozen=True)
class Limits:
    """How often and how quickly a keeper restarts a process."""

    max_restarts: int = 100
    max_crashes: int = 5
    first_delay_s: float = 0.5
    longest_delay_s: float = 5.0
    healthy_s: float = 60.0


class Decision(NamedTuple):
    """What to do after a process ended: restart it after `delay_s`, or give up."""

    again: bool
    delay_s: float
    first_of_row: bool  # the first failure since the process last worked


def judge(code: int, reason: str | None = None) -> Verdict:
    """The verdict on an exit code, which is -n for signal n.

    `reason` is why the keeper ended the process, if it did. A reason of memory, heartbeat or
    start-timeout decides alone, without the code.
    """
    if reason == "memory":
        return Verdict.CRASH
    if reason in ("heartbeat", "start-timeout"):
        return Verdict.RETRY
    if code == EXIT_OK:
        return Verdict.DONE
    if code == EXIT_CRASH or -code in CRASH_SIGNALS:
        return Verdict.CRASH
    if code == EXIT_RETRY or code < 0:
        return Verdict.RETRY
    return Verdict.FAILED


class Patience:
    """Counts failures in a row and increases the delay between restarts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._delay_s = limits.first_delay_s
        self._failures = 0
        self._crashes = 0

    def decide(self, verdict: Verdict, lived_s: float, beat: bool) -> Decision:
        """Count a failure and decide whether to restart; `lived_s` is the uptime."""
        healthy = lived_s >= self._limits.healthy_s
        if healthy:
            self._crashes = 0
        if healthy or beat:
            self._failures = 0
        if healthy or (beat and verdict is Verdict.RETRY):
            self._delay_s = self._limits.first_delay_s
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
