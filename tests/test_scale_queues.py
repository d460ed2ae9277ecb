"""The model of a cluster on paper against what can be worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks import scale_solve
from benchmarks.scale_queues import Costs, Shape, Simulation

COSTS = Costs(play_ms=80.0, worker_ms=5.0, ps_ms=5.0, ps_fixed_ms=1.0, wire_bytes=2.5e6)
FAST = 1e9  # Mbit/s


def test_a_lone_worker_waits_for_nobody() -> None:
    found = Simulation(Shape(1, 1, FAST), COSTS).run()
    assert found.updates_per_s == pytest.approx(1000 / (80 + 5 + 5), rel=0.02)
    assert found.staleness == 0
    assert found.limit == "workers"


def test_few_workers_add_up_and_are_stale_by_each_other() -> None:
    found = Simulation(Shape(4, 1, FAST), COSTS).run()
    assert found.updates_per_s == pytest.approx(4000 / 90, rel=0.06)
    assert found.staleness == pytest.approx(3, abs=0.2)


def test_a_ps_never_does_more_than_its_core_can() -> None:
    found = Simulation(Shape(64, 1, FAST), COSTS).run()
    assert found.updates_per_s == pytest.approx(1000 / 5, rel=0.02)
    assert found.limit == "ps"
    assert found.staleness == pytest.approx(63, abs=1)


def test_more_ps_divide_what_can_be_divided() -> None:
    found = Simulation(Shape(256, 4, FAST), COSTS).run()
    assert found.updates_per_s == pytest.approx(1000 / (1 + 4 / 4), rel=0.02)


def test_a_slow_link_gives_out_before_the_ps() -> None:
    found = Simulation(Shape(64, 1, 1000.0), COSTS).run()
    assert found.updates_per_s == pytest.approx(1e9 / 8 / 2.5e6, rel=0.02)
    assert found.limit == "link"


def test_workers_that_share_a_core_send_one_after_the_other() -> None:
    found = Simulation(Shape(64, 8, FAST, one_core=True), COSTS).run()
    assert found.updates_per_s == pytest.approx(1000 / 5, rel=0.02)


def test_gatherers_carry_more_workers_than_the_ps_does_alone() -> None:
    """A ps that has enough of 115 workers' pushes gets a sixteenth of them."""
    alone, gathered = (
        scale_solve.pushes_per_s(256, 1, hosts, 10_000.0, 945.0) for hosts in (0, 16)
    )
    few, few_gathered = (
        scale_solve.pushes_per_s(32, 1, hosts, 10_000.0, 945.0) for hosts in (0, 16)
    )
    assert gathered > 1.5 * alone
    assert few_gathered == pytest.approx(few, rel=0.1)


def test_the_time_to_solve_stops_falling_where_learning_needs_more_than_workers_bring() -> None:
    learned = {False: {1: 1.0, 64: 1.0, 256: 8.0}, True: {256: 8.0}}
    found = scale_solve.points(learned, env_steps=700_000, env_steps_per_s=945.0)
    wall = {(p.ps, p.hosts, p.workers, p.learning): p.wall_s for p in found if p.link_mbit_s > 1e3}
    same, worse = scale_solve.SAME, scale_solve.CARTPOLE
    assert wall[1, 0, 256, same] < 1.05 * wall[1, 0, 64, same]
    assert wall[1, 0, 256, worse] > 3 * wall[1, 0, 64, worse]
    assert (1, 0, 32, worse) not in wall
