"""Decide whether to restart a process that ended, after which delay, and when to give up.

how it ended                                        what follows
--------------------------------------------------  ------------------------------------------------
0                                                   done
75, an unexpected signal, hung                      restart; failed after `max_restarts` restarts in
                                                    a row without a first heartbeat
1 (an uncaught exception), too much memory, the     restart; failed at the `max_crashes`-th crash in
signals of a crash (SEGV, ABRT, BUS, FPE, ILL,        a row without `HEALTHY_S` of uptime in between
SYS)
129, 130, 143 of a ps or the chief: a signal to it  as after 75
alone
129, 130, 143 of another worker, whose machine may  failed
be taken away; 2, 70, every other code

The delay before a restart begins at `first_delay_s` and doubles up to `longest_delay_s`. It resets
after an uptime of `HEALTHY_S`. It also resets when a process that had worked ends with a result of
the second row (75, a signal, hung). A restart that a person requests doesn't count.
"""

from dataclasses import dataclass
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS
from typing import Literal, NamedTuple

from a3c.errors import EXIT_CRASH, EXIT_OK, EXIT_RETRY

HEALTHY_S = 60.0  # the uptime after which earlier crashes don't count

ExitKind = Literal["done", "retry", "crash", "failed"]  # how the end of a process is classified


@dataclass(frozen=True)
class Limits:
    max_restarts: int = 100
    max_crashes: int = 5
    first_delay_s: float = 0.5
    longest_delay_s: float = 5.0


class RestartDecision(NamedTuple):
    again: bool
    delay_s: float
    is_first_failure: bool  # no earlier failure or crash is counted at present


def classify_exit(code: int, reason: str | None = None) -> ExitKind:
    """Classify an exit code, -n for signal n, or the reason why the keeper ended the process."""
    if reason == "memory":
        return "crash"
    if reason in ("heartbeat", "start-timeout"):
        return "retry"
    if code == EXIT_OK:
        return "done"
    if code == EXIT_CRASH or -code in (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS):
        return "crash"
    if code == EXIT_RETRY or code < 0:
        return "retry"
    return "failed"


class RestartPolicy:
    """Counts failures in a row and increases the delay between restarts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._delay_s = limits.first_delay_s
        self._failures = 0
        self._crashes = 0

    def decide(self, kind: ExitKind, lived_s: float, has_beat: bool) -> RestartDecision:
        """Count a failure and decide whether to restart.

        `lived_s` is the uptime; `has_beat` says whether there was a heartbeat.
        """
        healthy = lived_s >= HEALTHY_S
        if healthy:
            self._crashes = 0
        if healthy or has_beat:
            self._failures = 0
        if healthy or (has_beat and kind == "retry"):
            self._delay_s = self._limits.first_delay_s
        is_first_failure = self._failures == 0 and self._crashes == 0
        self._failures += 1
        self._crashes += kind == "crash"
        again = (
            kind in ("retry", "crash")
            and self._failures <= self._limits.max_restarts
            and self._crashes < self._limits.max_crashes
        )
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, self._limits.longest_delay_s)
        return RestartDecision(again, delay_s, is_first_failure)
