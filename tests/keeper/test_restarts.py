"""Which ends lead to a restart, after which delay, and how often."""

import signal

import pytest

from a3c.keeper.restarts import Limits, Patience, Verdict, judge


def test_exit_codes_are_judged_as_the_table_says() -> None:
    codes = (-signal.SIGSEGV, -signal.SIGABRT, 70, 127)
    assert [judge(code) for code in codes] == ["crash", "crash", "failed", "failed"]


@pytest.mark.parametrize(("verdict", "beat"), [("retry", False), ("crash", True)])
def test_delays_double_up_to_the_longest_and_a_healthy_life_brings_back_the_first(
    verdict: Verdict, beat: bool
) -> None:
    limits = Limits(max_crashes=100, first_delay_s=0.5, longest_delay_s=10.0)
    patience = Patience(limits)
    delays = [patience.decide(verdict, 1.0, beat).delay_s for _ in range(7)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert patience.decide(verdict, 60.0, beat).delay_s == 0.5


def test_a_heartbeat_ends_a_row_of_retries_and_resets_their_delay() -> None:
    patience = Patience(Limits(max_restarts=2, first_delay_s=0.5))
    decisions = [patience.decide("retry", 1.0, beat) for beat in (False, False, True, False, False)]
    assert [decision.delay_s for decision in decisions] == [0.5, 1.0, 0.5, 1.0, 2.0]
    assert [decision.again for decision in decisions] == [True, True, True, True, False]


def test_only_a_healthy_life_ends_a_row_of_crashes() -> None:
    patience = Patience(Limits(max_crashes=3, healthy_s=60.0))
    decisions = [patience.decide("crash", uptime_s, beat=True) for uptime_s in (1, 1, 61, 1, 1)]
    assert [decision.again for decision in decisions] == [True, True, True, True, False]
    assert [decision.first_of_row for decision in decisions] == [True, False, True, False, False]
