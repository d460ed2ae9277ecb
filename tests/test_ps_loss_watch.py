"""Calls in the short way end with the ps, whether they hang or not."""

from __future__ import annotations

import threading
import time

from a3c.errors import RetryableError
from a3c.server.sessions import PATIENCE_S, PsLossWatch
from tests.runs import wait_until

LOST = RetryableError("the ps is lost")


class Ps:
    """What can be lost, and what a watch said about it."""

    def __init__(self) -> None:
        self.is_lost = threading.Event()
        self.said: list[RetryableError] = []
        self.watch = PsLossWatch(self.wait, self.said.append)

    def wait(self) -> None:
        self.is_lost.wait()
        raise LOST


def hang(ps: Ps) -> threading.Event:
    """A call that hangs until the event is set."""
    end, began = threading.Event(), threading.Event()

    def call() -> None:
        with ps.watch.calling():
            began.set()
            end.wait()

    threading.Thread(target=call, daemon=True).start()
    assert began.wait(10.0)
    return end


def test_a_lost_ps_is_called_no_more() -> None:
    ps = Ps()
    with ps.watch.calling():
        pass
    ps.is_lost.set()

    def refused() -> bool:
        try:
            with ps.watch.calling():
                return False
        except RetryableError as error:
            return error is LOST

    wait_until(refused, "a refusal", 10.0)
    assert ps.said == []


def test_a_call_that_hangs_because_the_ps_is_lost_is_told() -> None:
    ps = Ps()
    end = hang(ps)
    time.sleep(2 * PATIENCE_S)
    assert ps.said == []
    ps.is_lost.set()
    wait_until(lambda: ps.said, "word of it", 10.0)
    assert ps.said == [LOST]
    end.set()


def test_who_has_left_does_not_mind_the_loss() -> None:
    ps = Ps()
    ps.watch.end()
    end = hang(ps)
    ps.is_lost.set()
    time.sleep(3 * PATIENCE_S)
    assert ps.said == []
    end.set()
