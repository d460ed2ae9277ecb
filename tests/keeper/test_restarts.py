"""Which ends lead to a restart, after which delay, and how often."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c.keeper.restarts import Limits, Patience, Verdict, judge


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, "done"),
        (75, "retry"),
        (-signal.SIGKILL, "retry"),
        (-signal.SIGTERM, "retry"),
        (1, "crash"),
        (-signal.SIGSEGV, "crash"),
        (-signal.SIGABRT, "crash"),
        (2, "failed"),
        (70, "failed"),
        (127, "failed"),
    ],
)
def test_exit_codes_are_judged_as_the_table_says(code: int, verdict: Verdict) -> None:
    assert judge(code) == verdict


def test_a_process_that_its_keeper_ended_is_judged_by_why() -> None:
    assert judge(-signal.SIGTERM, "memory") == judge(0, "memory") == "crash"
    assert judge(1, "heartbeat") == judge(0, "start-timeout") == "retry"
    assert judge(70, "stop") == "failed"


@pytest.mark.parametrize(("verdict", "beat"), [("retry", False), ("crash", True)])
def test_delays_double_up_to_the_longest_and_a_healthy_life_brings_back_the_first(
    verdict: Verdict, beat: bool
) -> None:
    limits = Limits(max_crashes=100, first_delay_s=0.5, longest_delay_s=10.0)
    patience = Patience(limits)
    delays = [patience.decide(verdict, 1.0, beat).delay_s for _ in range(7)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert patience.decide(verdict, 60.0, beat).delay_s == 0.5


def test_a_process_that_had_worked_is_retried_after_the_first_delay() -> None:
    patience = Patience(Limits(first_delay_s=0.5))
    delays = [patience.decide("retry", 1.0, beat).delay_s for beat in (False, False, True)]
    assert delays == [0.5, 1.0, 0.5]
    assert {patience.decide("retry", 1.0, beat=True).delay_s for _ in range(20)} == {0.5}


def test_restarts_in_a_row_without_a_heartbeat_are_limited() -> None:
    patience = Patience(Limits(max_restarts=2))
    again = [patience.decide("retry", 1.0, beat=False).again for _ in range(3)]
    assert again == [True, True, False]


def test_a_heartbeat_ends_a_row_of_retries_but_not_of_crashes() -> None:
    retries, crashes = Patience(Limits(max_restarts=2)), Patience(Limits(max_crashes=3))
    assert all(retries.decide("retry", 1.0, beat=True).again for _ in range(50))
    decisions = [crashes.decide("crash", 1.0, beat=True) for _ in range(3)]
    assert [decision.again for decision in decisions] == [True, True, False]
    assert [decision.first_of_row for decision in decisions] == [True, False, False]


def test_a_healthy_life_ends_a_row_of_crashes() -> None:
    patience = Patience(Limits(max_crashes=2, healthy_s=60.0))
    patience.decide("crash", 1.0, beat=True)
    assert patience.decide("crash", 61.0, beat=True) == (True, 0.5, True)


@given(st.lists(st.sampled_from(["retry", "crash"]), min_size=20, max_size=40))
def test_every_crash_loop_ends(verdicts: list[Verdict]) -> None:
    patience = Patience(Limits(max_restarts=19, max_crashes=5))
    assert not all(patience.decide(verdict, 0.0, beat=False).again for verdict in verdicts)
