"""The process that plays evaluation games while others train."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from a3c.errors import RetryableError
from a3c.learn.games import EvaluationProcess
from tests import Patch
from tests.runs import is_gone, wait_until

CHECKPOINT = Path("somewhere") / "1000"


def play(candidate: Path, games: int) -> dict[str, Any]:
    if games == 2:
        raise ValueError("no such game")
    if games == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if games == 6:
        os.kill(os.getpid(), signal.SIGALRM)
    if games == 4:
        time.sleep(600)
    return {"path": str(candidate), "games": games, "pid": os.getpid(), "long": "x" * 200_000}


@pytest.fixture
def games() -> Iterator[EvaluationProcess]:
    made = EvaluationProcess(play)
    yield made
    made.close()


def forks(pid: int) -> tuple[psutil.Process, psutil.Process]:
    """The process that waits for requests, and the one that plays the games of one of them."""
    server = psutil.Process(pid)
    return server, wait_until(server.children, "the games")[0]


def answer(games: EvaluationProcess) -> dict[str, Any]:
    return wait_until(games.poll, "scores")


def test_each_request_is_played_in_a_process_of_its_own(games: EvaluationProcess) -> None:
    played = []
    for number in (1, 5):
        games.start(CHECKPOINT, number)
        played.append(answer(games))
        assert (played[-1]["path"], played[-1]["games"]) == (str(CHECKPOINT), number)
    assert len({os.getpid(), *(scores["pid"] for scores in played)}) == 3


def test_games_that_fail_say_why_and_the_next_are_played(games: EvaluationProcess) -> None:
    games.start(CHECKPOINT, 2)
    assert answer(games) == {"error": "ValueError: no such game"}
    games.start(CHECKPOINT, 3)
    assert answer(games) == {"error": "the process that played them ended with -9"}
    games.start(CHECKPOINT, 6)
    assert answer(games) == {"error": "a step took longer than --heartbeat-timeout allows"}
    games.start(CHECKPOINT, 1)
    assert answer(games)["games"] == 1


def test_closing_ends_the_games_that_are_played() -> None:
    games = EvaluationProcess(play)
    games.start(CHECKPOINT, 4)
    _, player = forks(games._pid)
    games.close()
    wait_until(lambda: is_gone(player.pid), "their end")


def test_a_fork_that_is_lost_is_worth_a_restart(games: EvaluationProcess) -> None:
    os.kill(games._pid, signal.SIGKILL)
    with pytest.raises(RetryableError, match="evaluation games is lost"):
        answer(games)
    with pytest.raises(RetryableError, match="evaluation games is lost"):
        games.start(CHECKPOINT, 1)


def test_at_the_limit_of_processes_a_chief_is_worth_a_restart(monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "fork", mock.Mock(side_effect=BlockingIOError(errno.EAGAIN, "no room")))
    refused = "no process for evaluation games: no room"
    with pytest.raises(RetryableError, match=refused):
        EvaluationProcess(play)


def test_the_games_end_with_a_chief_that_is_killed(tmp_path: Path) -> None:
    """Nothing else would end them: their session is not the chief's."""
    chief = os.fork()
    if chief == 0:
        try:
            games = EvaluationProcess(play)
            games.start(CHECKPOINT, 4)
            (tmp_path / "pid").write_text(f"{games._pid} ")
            time.sleep(600)
        finally:
            os._exit(1)  # else a second pytest would go on from here
    pid = tmp_path / "pid"
    try:
        server, player = forks(int(wait_until(lambda: pid.exists() and pid.read_text(), "it")))
    finally:
        os.kill(chief, signal.SIGKILL)
        os.waitpid(chief, 0)
    wait_until(lambda: is_gone(server.pid) and is_gone(player.pid), "the end of the games")
