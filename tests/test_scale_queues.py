"""The scale model against results that are worked out by hand."""

import argparse
import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import floor, scale_model, scale_solve, turns
from benchmarks.scale_queues import Costs, Shape, Simulation
from tests import Patch

COSTS = Costs(play_ms=80.0, worker_ms=5.0, ps_ms=5.0, ps_fixed_ms=1.0, wire_bytes=2.5e6)
FAST = 1e9  # Mbit/s


CASES = {  # shape, updates a second, staleness, what limits it
    "one worker never waits": (Shape(1, 1, FAST), 1000 / (80 + 5 + 5), 0, "workers"),
    "few workers add up": (Shape(4, 1, FAST), 4000 / 90, 3, "workers"),
    "a ps is limited by its core": (Shape(64, 1, FAST), 1000 / 5, 63, "ps"),
    "more ps divide all but the fixed cost": (Shape(256, 4, FAST), 1000 / (1 + 4 / 4), 255, "ps"),
    "a slow link": (Shape(64, 1, 1000.0), 1e9 / 8 / 2.5e6, 63, "link"),
    "workers that share a core": (Shape(64, 8, FAST, one_core=True), 1000 / 5, 63, "workers"),
}


@pytest.mark.parametrize("case", CASES)
def test_throughput_staleness_and_limit_are_those_worked_out_by_hand(case: str) -> None:
    shape, rate, staleness, limit = CASES[case]
    found = Simulation(shape, COSTS).run()
    assert found.updates_per_s == pytest.approx(rate, rel=0.06 if shape.workers == 4 else 0.02)
    assert found.staleness == pytest.approx(staleness, abs=0.2 if shape.workers < 5 else 1)
    assert found.limit == limit


def test_the_time_to_solve_stops_falling_where_learning_needs_more_than_workers_bring() -> None:
    learned = {False: {1: 1.0, 64: 1.0, 256: 8.0}, True: {256: 8.0}}
    found = scale_solve.points(learned, env_steps=700_000, env_steps_per_s=945.0)
    wall = {
        (p.ps, p.hosts, p.workers, p.learning): p.wall_s
        for p in found
        if p.link_mbit_s > 1e3 and p.smallest_push == scale_solve.SMALL
    }
    same, worse = scale_solve.SAME, scale_solve.CARTPOLE
    assert wall[1, 0, 256, same] < 1.05 * wall[1, 0, 64, same]
    assert wall[1, 0, 256, worse] > 3 * wall[1, 0, 64, worse]
    assert (1, 0, 32, worse) not in wall


def test_no_part_of_a_cluster_is_busy_for_longer_than_the_run() -> None:
    for link in (FAST, 1000.0):
        found = Simulation(Shape(1024, 1, link), COSTS).run()
        assert 0.9 < max(found.ps_load, found.link_load) <= 1
        assert min(found.ps_load, found.link_load) <= 1


def test_the_cost_of_a_small_network_was_measured_with_small_networks() -> None:
    pong = scale_model.costs_of(scale_model.PARAMETERS["pong"], 40.0)
    assert pong.ps_ms == pytest.approx((0.31 + 0.363) / 2)
    assert pong.ps_fixed_ms == pytest.approx(0.27, abs=0.01)


def test_floor_and_cluster_have_equally_many_workers(tmp_path: Path, monkeypatch: Patch) -> None:
    commands: list[list[str]] = []

    def note(_name: str, command: Sequence[str], *_: object, **__: Any) -> None:
        commands.append(shlex.split(command[-1]) if command[0] == "sh" else list(command))

    monkeypatch.setattr(turns, "Contestant", note)
    monkeypatch.setattr(floor, "Contestant", note)
    monkeypatch.setattr(turns, "scratch", lambda: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(turns, "compare", lambda *_: [(1, 1.0, 1.0)])
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    rows = floor.measure("classic", ["--gamma", "0.9"], argparse.Namespace(seconds=1.0, pairs=1))
    assert rows[0].flags == "--gamma 0.9"
    assert [words.count("--workers") for words in commands] == [3, 1]
    assert all(words[words.index("--workers") + 1] == "3" for words in commands)
