"""Who starts up when: ps and chief first, then the others in groups, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from a3c import turnstile as module
from a3c.turnstile import GROUP, turnstile
from tests.clusters import REPOSITORY
from tests.runs import wait_until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second in which the first ones step up."""
    monkeypatch.setattr(module, "YIELD_S", 0.0)


class Starter(threading.Thread):
    """Something that starts up until it is let go."""

    def __init__(self, directory: Path, cores: int, *, first: bool = False) -> None:
        super().__init__(daemon=True)
        self._turn = turnstile(directory, cores, first=first)
        self.inside, self.let_go = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._turn:
            self.inside.set()
            self.let_go.wait(60)
        self.inside.clear()


@contextlib.contextmanager
def starting(directory: Path, cores: int, others: int) -> Iterator[tuple[list[Starter], ...]]:
    """Two that are first, and then others."""
    firsts = [Starter(directory, cores, first=True) for _ in range(2)]
    assert all(starter.inside.wait(60) for starter in firsts)
    rest = [Starter(directory, cores) for _ in range(others)]
    try:
        yield firsts, rest
    finally:
        for starter in (*firsts, *rest):
            starter.let_go.set()
        for starter in (*firsts, *rest):
            starter.join(60)


def num_inside(starters: list[Starter]) -> int:
    return sum(starter.inside.is_set() for starter in starters)


def test_others_get_the_cores_that_ps_and_chief_leave(tmp_path: Path) -> None:
    with starting(tmp_path, 4, 5) as (_, rest):
        wait_until(lambda: num_inside(rest) == 2, "two others")
        assert not threading.Event().wait(0.5)
        assert num_inside(rest) == 2


def test_on_two_cores_others_wait_for_both_and_then_come_in_groups(tmp_path: Path) -> None:
    with starting(tmp_path, 2, 2 * GROUP + 3) as (firsts, rest):
        firsts[0].let_go.set()
        assert not threading.Event().wait(0.5)
        assert num_inside(rest) == 0
        firsts[1].let_go.set()
        wait_until(lambda: num_inside(rest) == 2 * GROUP, "a group")
        assert not threading.Event().wait(0.5)
        assert num_inside(rest) == 2 * GROUP
        next(starter for starter in rest if starter.inside.is_set()).let_go.set()
        wait_until(lambda: sum(s.is_alive() for s in rest) < len(rest), "one that is through")
        wait_until(lambda: num_inside(rest) == 2 * GROUP, "the next one")


def test_a_killed_process_gives_its_turn_back(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from a3c.turnstile import turnstile\n"
        f"with turnstile(Path({str(tmp_path)!r}), 2): print('in', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as chief:
        assert chief.stdout
        assert chief.stdout.readline() == b"in\n"
        other = Starter(tmp_path, 2)
        assert not other.inside.wait(0.5)
        chief.kill()
        assert other.inside.wait(60)
        other.let_go.set()


def test_who_waits_says_so_and_goes_ahead_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    monkeypatch.setattr(module, "SAY_AFTER_S", 0.1)
    caplog.set_level("INFO")
    with starting(tmp_path, 2, 1) as (_, rest):
        assert rest[0].inside.wait(60)
    assert "waiting for its turn to start" in caplog.text


@pytest.mark.parametrize("first", [True, False])
def test_where_nothing_can_be_written_nobody_waits(first: bool) -> None:
    with turnstile(Path("/dev/null/processes"), 1, first=first):
        pass
