"""Who starts up when: ps and chief first, then all others."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from a3c.process import startup as module
from a3c.process.startup import start_in_order
from tests.runs import wait_until

MANY = 1000  # processes: more than a machine has cores


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second in which the first ones begin."""
    monkeypatch.setattr(module, "YIELD_S", 0.0)


class Starter(threading.Thread):
    def __init__(self, directory: Path, *, first: bool = False, processes: int = MANY) -> None:
        super().__init__(daemon=True)
        self._turn = start_in_order(directory, first=first, processes=processes)
        self.inside, self.let_go = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._turn:
            self.inside.set()
            self.let_go.wait(60)
        self.inside.clear()


@contextlib.contextmanager
def starting(directory: Path, others: int) -> Iterator[tuple[list[Starter], ...]]:
    firsts = [Starter(directory, first=True) for _ in range(2)]
    assert all(starter.inside.wait(60) for starter in firsts)
    rest = [Starter(directory) for _ in range(others)]
    try:
        yield firsts, rest
    finally:
        for starter in (*firsts, *rest):
            starter.let_go.set()
        for starter in (*firsts, *rest):
            starter.join(60)


def num_inside(starters: list[Starter]) -> int:
    return sum(starter.inside.is_set() for starter in starters)


def test_others_log_that_they_wait_for_the_ps_and_the_chief_and_then_start_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with starting(tmp_path, 9) as (firsts, rest):
        firsts[0].let_go.set()
        assert not threading.Event().wait(0.5)
        assert num_inside(rest) == 0
        firsts[1].let_go.set()
        wait_until(lambda: num_inside(rest) == 9, "all others")
    assert "waiting until the ps and the chief have started" in caplog.text


def test_no_process_waits_if_each_has_a_core(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    with starting(tmp_path, 1) as (_, rest):
        other = Starter(tmp_path, processes=cores)
        assert other.inside.wait(60)
        assert num_inside(rest) == 0
        other.let_go.set()


@pytest.mark.parametrize("first", [True, False])
def test_no_process_waits_if_nothing_can_be_written(first: bool) -> None:
    with start_in_order(Path("/dev/null/processes"), first=first, processes=MANY):
        pass
