from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import race, turns
from benchmarks.peers import rows as table
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, PEERS, Peer
from benchmarks.peers.programs.progress import Progress
from benchmarks.peers.rows import Row
from benchmarks.turns import Contestant, StartError
from tests.runs import wait_until


def row(peer: str, speed: float, pair: int = 1, settings: str = '{"envs":1}') -> Row:
    failed = "" if speed else "it said nothing"
    return Row(
        *("2026-01-01 00:00:00", "abc", "2 cores, a CPU", 1.5, peer, "torch==1", settings, pair),
        *(int(10 * speed), 10.0, speed, failed),
    )


def contestant(tmp_path: Path, script: str, **keywords: Any) -> Contestant:
    counts = tmp_path / "counts.jsonl"
    command = [sys.executable, "-c", script, str(counts)]
    return Contestant("fake", command, [counts], output=tmp_path / "said.txt", **keywords)


def test_program_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    one = contestant(tmp_path, "raise KeyError('envs')")
    with pytest.raises(StartError, match="fake did not start; exit 1: KeyError: 'envs'"):
        one.wait_until_counting()
    one.close()


COUNT = """
import json, sys, time
for step in range(10**6):
    row = {"time": time.time(), "env_steps": step, "cluster/workers": 1 + (step > 20)}
    print(json.dumps(row), file=open(sys.argv[1], "a"))
    time.sleep(0.01)
"""


def test_a_cluster_counts_once_all_workers_do_and_stops_while_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contestant(tmp_path, COUNT, workers=2)
    try:
        one.wait_until_counting()
        assert turns.last_row(tmp_path / "counts.jsonl")["env_steps"] > 20
        one.freeze()
        time.sleep(0.1)
        still = turns.last_row(tmp_path / "counts.jsonl")
        time.sleep(0.3)
        one.breathe()  # only what is frozen for long does
        assert turns.last_row(tmp_path / "counts.jsonl") == still
        monkeypatch.setattr(turns, "MAX_FROZEN_S", 0.0)
        one.breathe()
        still, before = turns.last_row(tmp_path / "counts.jsonl"), still
        assert still != before
        one.thaw()
        wait_until(lambda: turns.last_row(tmp_path / "counts.jsonl") != still, "a new row")
    finally:
        one.close()


def test_every_peer_that_is_compared_by_speed_takes_part_in_a_race() -> None:
    assert {one.venv for one in race.CONTESTANTS} == {"", *(peer.name for peer in PEERS[1:])}
    assert race.CONTESTANTS[0] == race.Contestant(OURS)
    for one in race.CONTESTANTS[1:]:
        assert (venvs.HERE / "programs" / f"{one.program}.py").is_file()


def test_ratio_is_of_medians_and_its_range_of_pairs() -> None:
    ours = [row(OURS, speed, pair) for pair, speed in enumerate((1000.0, 1200.0, 900.0), 1)]
    theirs = [row("sb3", speed, pair) for pair, speed in enumerate((500.0, 400.0, 450.0), 1)]
    first, second = table.compare([*theirs, *ours])
    assert (first.peer, first.median, second.median) == (OURS, 1000.0, 450.0)
    assert second.ratios == [2.0, 3.0, 2.0]
    text = "\n".join(table.summary([*theirs, *ours, row("rllib", 0.0)]))
    assert "| sb3 | envs 1 | 450 (400 to 500) | 2.22 (2.00 to 3.00) |" in text
    assert "failed: rllib in pair 1: it said nothing" in text


@pytest.mark.parametrize("peer", PEERS[1:], ids=lambda peer: peer.name)
def test_every_peer_has_a_program_and_nothing_but_pinned_versions(peer: Peer) -> None:
    assert (venvs.HERE / "programs" / f"{peer.program}.py").is_file()
    lines = venvs.requirements(peer.name).read_text().splitlines()
    assert all(line.count("==") == 1 and "+" not in line for line in lines)
    assert peer.settings


def test_progress_is_over_by_a_hundred_games_and_not_by_fewer_or_by_time(tmp_path: Path) -> None:
    times = iter([1001.0, 1006.0, 1007.0])
    progress = Progress(tmp_path / "curve.csv", 1000.0, 18.0, 600.0, clock=lambda: next(times))
    assert not progress.over(100, [21.0] * 99)
    assert not progress.over(200, [])
    assert progress.over(300, [18.0])
    assert progress.solved
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines == [
        "wall_s,env_steps,games,mean_return_100",
        "6.0,200,99,21.0",
        "7.0,300,100,20.97",
    ]
    late = Progress(tmp_path / "late.csv", 1000.0, 18.0, 600.0, clock=lambda: 1600.0)
    assert (late.over(100, []), late.solved) == (True, False)
