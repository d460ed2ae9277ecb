"""A bad network between hosts: slower or paused, then on, and no step counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from a3c import processes
from tests.faults import ledger, wire
from tests.faults.spread import Spread, spread
from tests.runs import manifest, wait_until

pytestmark = pytest.mark.skipif(bool(wire.why_not()), reason=wire.why_not())

SETTINGS = {"envs_per_worker": 4, "rollout_length": 10, "ps_timeout_s": 12.0}
IN_FLIGHT = 4 * 10  # steps of one rollout


def restarts(cluster: Spread, name: str) -> int:
    """How often a process was started again."""
    return cluster.record(name).restarts


def everyone_works(cluster: Spread) -> bool:
    """Whether every worker is attached and writes metrics."""
    conditions = [cluster.gains(name) for name in cluster.hosts if name != "ps-0"]
    wait_until(lambda: all(condition() for condition in conditions), "every worker's metrics")
    return True


def assert_counted_once(cluster: Spread, lives: int) -> None:
    """No step is counted that was not played, and each life loses two rollouts at most.

    One that was being played, and one whose answer was waited for.
    """
    counted = manifest(cluster.run.path).step
    played = ledger.read(cluster.ledger).steps
    assert counted <= played <= counted + lives * 2 * IN_FLIGHT


def test_a_bad_network_slows_or_pauses_and_counts_no_step_twice(tmp_path: Path) -> None:
    with wire.hosts(3) as hosts, spread(tmp_path / "run", hosts, **SETTINGS) as cluster:
        ps, chief, worker = hosts
        wait_until(lambda: all(cluster.run.metrics(f"worker-{i}").exists() for i in (0, 1)), "rows")
        everyone_works(cluster)

        worker.weather.loss = 0.3
        wait_until(cluster.gains("worker-0"), "the chief at work beside a lossy link")
        time.sleep(5)
        worker.weather.loss = 0.0
        everyone_works(cluster)

        ps.weather.delay_s = 0.15  # 300 ms there and back
        cluster.goes_on("training over a slow link", steps=400)
        ps.weather.delay_s = 0.0
        assert [restarts(cluster, name) for name in cluster.hosts] == [0, 0, 0]

        chief.weather.cut = True
        time.sleep(5)
        chief.weather.cut = False
        everyone_works(cluster)
        assert [restarts(cluster, name) for name in cluster.hosts] == [0, 0, 0]

        _partition_of_a_worker(cluster)
        _partition_of_the_ps(cluster)
        lives = sum(1 + restarts(cluster, name) for name in cluster.hosts)
        cluster.leave()
        assert_counted_once(cluster, lives)


def _partition_of_a_worker(cluster: Spread) -> None:
    """It is out, the others train on, and it returns."""
    before = cluster.step
    cluster.hosts["worker-1"].weather.cut = True
    wait_until(lambda: restarts(cluster, "worker-1") >= 1, "the worker's new start")
    assert cluster.step > before
    assert restarts(cluster, "worker-0") == 0
    cluster.hosts["worker-1"].weather.cut = False
    everyone_works(cluster)


def _partition_of_the_ps(cluster: Spread) -> None:
    """Everyone waits, comes back and finds the ps as it was: nothing is restored."""
    pid = cluster.record("ps-0").pid
    before = cluster.step
    cluster.hosts["ps-0"].weather.cut = True
    wait_until(lambda: restarts(cluster, "worker-0") >= 1, "the chief's new start")
    cluster.hosts["ps-0"].weather.cut = False
    everyone_works(cluster)
    assert cluster.record("ps-0").pid == pid
    assert processes.live_state(cluster.record("ps-0")) == "running"
    assert cluster.step > before
