import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from a3c.run.rows import last_rows
from a3c.run.rundir import REPOSITORY
from benchmarks import machine, turns
from benchmarks.peers import rows as table
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS
from benchmarks.peers.programs.progress import Progress
from benchmarks.peers.rows import Row
from benchmarks.turns import Contestant
from tests import Patch
from tests.runs import call, wait_until


def row(peer: str, speed: float, pair: int = 1) -> Row:
    failed = "" if speed else "it said nothing"
    return Row(
        *("2026-01-01 00:00:00", "abc", "2 cores", 1.5, peer, "torch==1", '{"envs":1}', pair),
        *(int(10 * speed), 10.0, speed, failed),
    )


COUNT = """
import json, sys, time
for step in range(10**6):
    row = {"time": time.time(), "env_steps": step, "cluster/workers": 1 + (step > 20)}
    print(json.dumps(row), file=open(sys.argv[1], "a"))
    time.sleep(0.01)
"""


def test_a_cluster_counts_once_all_do_unless_frozen(tmp_path: Path, monkeypatch: Patch) -> None:
    counts = tmp_path / "counts.jsonl"
    command = [sys.executable, "-c", COUNT, str(counts)]
    one = Contestant("fake", command, [counts], output=tmp_path / "said.txt", workers=2)
    try:
        one.wait_until_counting()
        assert last_rows(counts)[-1]["env_steps"] > 20
        one.freeze()
        time.sleep(0.1)
        still = last_rows(counts)[-1]
        time.sleep(0.3)
        one.let_run_briefly()  # only what is frozen for long does
        assert last_rows(counts)[-1] == still
        monkeypatch.setattr(turns, "MAX_FROZEN_S", 0.0)
        one.let_run_briefly()
        still, before = last_rows(counts)[-1], still
        assert still != before
        one.resume()
        wait_until(lambda: last_rows(counts)[-1] != still, "a new row")
    finally:
        one.close()


def test_a_program_of_a_peer_needs_nothing_of_ours(tmp_path: Path) -> None:
    python = venvs.python("peer", tmp_path)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without any library
    python.chmod(0o755)
    command = venvs.command("peer", tmp_path, "progress")
    ended = call(*command, cwd=REPOSITORY, env={**os.environ, **venvs.ENVIRONMENT})
    assert ended.returncode == 0, ended.stderr
    programs = (venvs.HERE / "programs").glob("*.py")
    assert not [path.name for path in programs if "from benchmarks" in path.read_text()]


def test_a_race_names_the_reason_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    command = [sys.executable, "-m", "benchmarks.race", "--output", str(path), "--only", OURS]
    ended = call(*command, "--turn", "5", "--", "--no-such-flag", "1", cwd=REPOSITORY)
    assert ended.returncode == 1, ended.stderr
    (row,) = machine.read(path)
    assert "--no-such-flag" in row["note"]


def test_a_table_of_no_rows_is_not_written_and_lines_end_as_in_git(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    machine.append(path, [])
    assert not path.exists()
    machine.append(path, [row(OURS, 1.0)])
    machine.write(path, [])
    machine.append(path, [row(OURS, 2.0)])
    assert len(machine.read(path)) == 2
    assert b"\r" not in path.read_bytes()


class Sleeper(Contestant):
    """Notes how long it was frozen at a time."""

    def __init__(self, clock: list[float]) -> None:
        self.name, self._clock, self._stopped_at, self.longest_s = "", clock, 0.0, 0.0

    def _signal(self, number: int) -> None:
        if number == signal.SIGSTOP:
            self._stopped_at = self._clock[0]
        else:
            self.longest_s = max(self.longest_s, self._clock[0] - self._stopped_at)

    def rate(self, begin: float, end: float) -> float:
        return 0.0


def test_no_program_is_frozen_for_the_minute_that_hangs_tensorflow(monkeypatch: Patch) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    reads = dict.fromkeys(("time", "monotonic"), lambda: clock[0])
    monkeypatch.setattr(turns, "time", SimpleNamespace(sleep=sleep, **reads))
    programs = [Sleeper(clock) for _ in range(6)]
    for program in programs:
        program.freeze()
    turns.take_turns(programs, 3, 30.0, lambda *_: None)
    assert 30.0 < max(program.longest_s for program in programs) < 60.0


def test_ratio_is_of_medians_and_its_range_of_pairs() -> None:
    ours = [row(OURS, speed, pair) for pair, speed in enumerate((1000.0, 1200.0, 900.0), 1)]
    theirs = [row("sb3", speed, pair) for pair, speed in enumerate((500.0, 400.0, 450.0), 1)]
    first, second = table.compare([*theirs, *ours])
    assert (first.peer, first.median, second.median) == (OURS, 1000.0, 450.0)
    assert second.ratios == [2.0, 3.0, 2.0]
    text = "\n".join(table.summary([*theirs, *ours, row("rllib", 0.0)]))
    assert "| sb3 | envs 1 | 450 (400 to 500) | 2.22 (2.00 to 3.00) |" in text
    assert "failed: rllib in pair 1: it said nothing" in text


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
