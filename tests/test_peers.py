from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import rows as table
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, PEERS
from benchmarks.peers.measure import Times, parse_result, window
from benchmarks.peers.picture import figure
from benchmarks.peers.programs.stopwatch import Stopwatch
from benchmarks.peers.rows import Row


def row(peer: str, speed: float, pair: int = 1, settings: str = '{"envs":1}') -> Row:
    failed = "" if speed else "it said nothing"
    return Row(
        *("2026-01-01 00:00:00", "abc", "2 cores, a CPU", 1.5, peer, "torch==1", settings, pair),
        *(int(10 * speed), 10.0, speed, failed),
    )


def test_stopwatch_measures_whole_rounds_after_the_warm_up() -> None:
    times = iter([100.0, 101.0, 102.5, 104.0, 107.0, 109.0])
    stopwatch = Stopwatch(2.0, 4.0, clock=lambda: next(times))
    steps = (0, 10, 20, 30, 40, 50)
    assert [stopwatch.over(step) for step in steps] == [False, False, False, False, True, True]
    assert (stopwatch.env_steps, stopwatch.seconds) == (20, 4.5)


def test_our_window_begins_when_all_workers_have_been_there_for_the_warm_up() -> None:
    workers = (1, 2, 2, 2, 2, 2)
    rows = [
        {"time": 10.0 + i, "env_steps": 100 * i, "cluster/workers": number}
        for i, number in enumerate(workers)
    ]
    attached = {"time": 9.0, "env_steps": 0, "event": "attached"}
    assert window([attached, *rows], 2, Times(1.0, 3.0)) == (300, 3.0)
    assert window([attached, *rows[:-1]], 2, Times(1.0, 3.0)) is None
    assert window([attached, *rows], 3, Times(1.0, 3.0)) is None


def test_result_is_found_among_what_libraries_say() -> None:
    line = 'RESULT {"env_steps": 7, "seconds": 2.0, "versions": "torch==1"}'
    assert parse_result(["hello", line, "a warning"])[:3] == (7, 2.0, "torch==1")
    assert parse_result(["Traceback", "KeyError: 'envs'", ""]).failure == "KeyError: 'envs'"
    assert parse_result([]).failure == "it said nothing"


def test_rows_come_back_from_the_file_as_they_were(tmp_path: Path) -> None:
    found = [row("sb3", 500.0), row("rllib", 0.0)]
    table.write(tmp_path / "rows.csv", found, "a command, with a comma")
    assert table.read(tmp_path / "rows.csv") == found


def test_best_of_a_search_is_marked_for_each_peer_that_ran() -> None:
    slow, fast = '{"envs":8}', '{"envs":16}'
    found = [row("sb3", 400.0, 1, slow), row("sb3", 500.0, 1, fast), row("rllib", 0.0)]
    marked = table.mark_best(table.mark_best(found))
    assert [one.note for one in marked] == ["", "best", "it said nothing"]
    assert table.best_settings(marked) == {"sb3": json.loads(fast)}


def test_faster_find_takes_the_mark_from_an_older_one() -> None:
    old = table.mark_best([row("sb3", 400.0)])
    assert [one.note for one in table.mark_best([*old, row("sb3", 500.0)])] == ["", "best"]


def test_ratio_is_of_medians_and_its_range_of_pairs() -> None:
    ours = [row(OURS, speed, pair) for pair, speed in enumerate((1000.0, 1200.0, 900.0), 1)]
    theirs = [row("sb3", speed, pair) for pair, speed in enumerate((500.0, 400.0, 450.0), 1)]
    first, second = table.compare([*theirs, *ours])
    assert (first.peer, first.median, second.median) == (OURS, 1000.0, 450.0)
    assert second.ratios == [2.0, 3.0, 2.0]
    text = "\n".join(table.summary([*theirs, *ours, row("rllib", 0.0)]))
    assert "| sb3 | envs 1 | 450 (400 to 500) | 2.22 (2.00 to 3.00) |" in text
    assert "failed: rllib in pair 1: it said nothing" in text


def test_picture_has_a_bar_for_each_program() -> None:
    axes = figure([row(OURS, 1000.0), row("sb3", 500.0), row("rllib", 100.0)]).axes[0]
    assert len(axes.patches) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rllib", "sb3", OURS]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_a_program_and_nothing_but_pinned_versions(peer) -> None:  # type: ignore[no-untyped-def]
    assert (venvs.HERE / "programs" / f"{peer.program}.py").is_file()
    lines = venvs.requirements(peer.name).read_text().splitlines()
    assert all(line.count("==") == 1 and "+" not in line for line in lines)
    assert peer.grid
