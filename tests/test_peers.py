from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import race, turns
from benchmarks.peers import rows as table
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, PEERS, Peer
from benchmarks.peers.programs.counter import Counter
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


def test_counter_writes_versions_and_then_counts_at_intervals(tmp_path: Path) -> None:
    times = iter([100.0, 100.1, 100.3])
    counter = Counter(tmp_path / "counts.jsonl", clock=lambda: next(times))
    counter.begin("numpy")
    for steps in (0, 10, 20):
        counter.count(steps)
    first, *rows = map(json.loads, (tmp_path / "counts.jsonl").read_text().splitlines())
    assert first["versions"].startswith("numpy==")
    assert [(row["time"], row["env_steps"]) for row in rows] == [(100.0, 0), (100.3, 20)]


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


def test_programs_are_frozen_once_they_count_and_a_failed_start_is_named(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("late", "broken", "early")]
    for folder in folders:
        folder.mkdir()
    scripts = [f"import time; time.sleep(1.5){COUNT}", "raise KeyError('envs')", COUNT]
    cast = [contestant(*one) for one in zip(folders, scripts, strict=True)]
    for one, folder in zip(cast, folders, strict=True):
        one.name = folder.name
    try:
        failed = turns.freeze_when_counting(cast, warm_up_s=0.2)
        assert list(failed) == ["broken"]
        assert "KeyError: 'envs'" in str(failed["broken"])
        last = [turns.last_row(folders[i] / "counts.jsonl") for i in (0, 2)]
        assert all(row["env_steps"] > 5 for row in last)  # it warmed up
        time.sleep(0.3)
        assert [turns.last_row(folders[i] / "counts.jsonl") for i in (0, 2)] == last
        assert last[0]["time"] > last[1]["time"] + 0.5  # the early one did not wait for the late
    finally:
        for one in cast:
            one.close()


def test_the_time_of_a_racer_is_that_of_its_turns() -> None:
    had = race.Turns()
    had.add(100.0, 120.0)
    had.add(160.0, 180.0)
    assert [had.seconds(t) for t in (90.0, 110.0, 130.0, 165.0, 999.0)] == [0, 10, 20, 25, 40]


def test_first_turns_of_a_race_are_for_starting_and_ours_is_frozen_for_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    had: list[tuple[str, float]] = []

    class Fake:
        ended = False

        def __init__(self, name: str) -> None:
            self.name = name

        def turn(self, seconds: float) -> None:
            had.append((self.name, seconds))

        def solved(self) -> bool:
            return len(had) == 6

    monkeypatch.setattr(race, "tell", lambda *_: None)
    field: Any = [Fake(name) for name in "abc"]
    race.race(field, Namespace(turn=20.0, max_minutes=5.0, whole=False))
    starts = [(name, race.START_S) for name in "cba"]
    assert had == [*starts, ("a", 20.0), ("b", 20.0), ("c", 20.0)]


def test_every_peer_that_is_compared_by_speed_takes_part_in_a_race() -> None:
    assert {one.venv for one in race.CONTESTANTS} == {"", *(peer.name for peer in PEERS[1:])}
    assert race.CONTESTANTS[0] == race.Contestant(OURS)
    for one in race.CONTESTANTS[1:]:
        assert (venvs.HERE / "programs" / f"{one.program}.py").is_file()


def test_variant_of_ours_is_named_by_its_flags() -> None:
    assert race.variant("--wire-dtype float16") == race.Contestant(
        "a3c-cluster-wire-dtype-float16", flags=("--wire-dtype", "float16")
    )


def test_peers_curve_is_read_without_a_row_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    assert race.peer_rows(path) == []
    path.write_text("wall_s,env_steps,games,mean_return_100\n5.0,200,1,-21.0\n10.0,4")
    assert race.peer_rows(path) == [(5.0, "200", "1", "-21.0")]


def test_ratio_is_of_medians_and_its_range_of_pairs() -> None:
    ours = [row(OURS, speed, pair) for pair, speed in enumerate((1000.0, 1200.0, 900.0), 1)]
    theirs = [row("sb3", speed, pair) for pair, speed in enumerate((500.0, 400.0, 450.0), 1)]
    first, second = table.compare([*theirs, *ours])
    assert (first.peer, first.median, second.median) == (OURS, 1000.0, 450.0)
    assert second.ratios == [2.0, 3.0, 2.0]
    text = "\n".join(table.summary([*theirs, *ours, row("rllib", 0.0)]))
    assert "| sb3 | envs 1 | 450 (400 to 500) | 2.22 (2.00 to 3.00) |" in text
    assert "failed: rllib in pair 1: it said nothing" in text


def test_ratio_leaves_out_pairs_that_were_cut_short() -> None:
    found = [row(OURS, 1000.0, 1), row("sb3", 500.0, 1), row(OURS, 1500.0, 2)]
    (ratio,) = [one.ratio for one in table.compare(found) if one.peer == "sb3"]
    assert ratio == 2.0


def test_picture_has_a_bar_for_each_program() -> None:
    axes = table.figure([row(OURS, 1000.0), row("sb3", 500.0), row("rllib", 100.0)]).axes[0]
    assert len(axes.patches) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rllib", "sb3", OURS]


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


def racer(program: str) -> race.Row:
    return race.Row(
        *("2026-01-01 00:00:00", "abc", "2 cores, a CPU", 1.5, program, "torch==1", "{}", 1),
        *(True, 600.0, 1200.0, 1000, 120, 18.25, "solved"),
    )


def test_picture_of_a_race_has_a_line_for_each_program_by_its_own_minutes(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("wall_s,env_steps,games,mean_return_100\n5.0,20,0,\n60.0,400,1,-21.0\n")
    found = race.curve(path)
    assert found == [(1.0, -21.0)]
    rows = [racer(OURS), racer("sb3-ppo")]
    made = race.figure(rows, {row.program: found for row in rows}, 18.0)
    assert len(made.axes[0].lines) == 3  # and the goal
    assert race.summary(rows)[-1] == "| sb3-ppo | 10.0 min | 1,000 | 18.25 |"


def test_our_curve_is_what_the_chief_wrote_of_the_cluster() -> None:
    rows: list[dict[str, Any]] = [
        {"time": 100.0, "env_steps": 0, "event": "attached"},
        {"time": 105.0, "env_steps": 50, "cluster/episodes": 0},
        {"time": 110.0, "env_steps": 90, "cluster/episodes": 2, "cluster/mean_return_100": -20.5},
    ]
    assert race.chief_curve(rows, 95.0) == [(10.0, 50, 0, ""), (15.0, 90, 2, -20.5)]
