"""A bad network between hosts: slower or paused, then on, and no step counted twice.

One cluster on hosts of their own goes through all of it, test after test.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from a3c.process import process_records
from tests.faults import ledger, noise, wire
from tests.faults.spread import PORT, Spread, spread
from tests.faults.wire import Conditions, Host
from tests.runs import manifest, wait_until

pytestmark = pytest.mark.skipif(bool(wire.why_not()), reason=wire.why_not())

# TCP sends again after twice the last wait: a call that five silent seconds hit may take ten.
SETTINGS = ("--envs-per-worker", "4", "--rollout-length", "10", "--ps-timeout", "25")
IN_FLIGHT = 4 * 10  # steps of one rollout


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Hosts for the ps, the chief, another worker, and a stranger."""
    with wire.hosts(4) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    scratch = tmp_path_factory.mktemp("network")
    with spread(scratch / "run", scratch / "ledger", hosts[:3], *SETTINGS) as made:
        files = [made.run.metrics(name) for name in ("worker-0", "worker-1")]
        wait_until(lambda: all(file.exists() for file in files), "training")
        yield made


@pytest.fixture(autouse=True)
def good_network(hosts: list[Host]) -> Iterator[None]:
    """Mend the network after each test, so that a failure fails no later test."""
    yield
    for host in hosts:
        host.conditions = Conditions()


def restarts(cluster: Spread) -> list[int]:
    return [cluster.record(name).restarts for name in cluster.hosts]


def everyone_works(cluster: Spread) -> None:
    conditions = [cluster.gains(name) for name in cluster.hosts if name != "ps-0"]
    wait_until(lambda: all(condition() for condition in conditions), "every worker's metrics")


def test_a_lossy_link_slows_its_worker_only(cluster: Spread, hosts: list[Host]) -> None:
    hosts[2].conditions.loss = 0.3
    wait_until(cluster.gains("worker-0"), "the chief at work beside a lossy link")
    time.sleep(5)
    hosts[2].conditions.loss = 0.0
    everyone_works(cluster)
    assert restarts(cluster) == [0, 0, 0]


def test_training_goes_on_over_a_slow_link(cluster: Spread, hosts: list[Host]) -> None:
    hosts[0].conditions.delay_s = 0.15  # 300 ms there and back
    cluster.goes_on("training over a slow link", steps=400)
    hosts[0].conditions.delay_s = 0.0
    assert restarts(cluster) == [0, 0, 0]


def test_five_silent_seconds_are_waited_out(cluster: Spread, hosts: list[Host]) -> None:
    hosts[1].conditions.cut = True
    time.sleep(5)
    hosts[1].conditions.cut = False
    everyone_works(cluster)
    assert restarts(cluster) == [0, 0, 0]


def test_noise_at_the_port_of_the_ps_disturbs_nobody(cluster: Spread, hosts: list[Host]) -> None:
    ps = psutil.Process(cluster.pid("ps-0"))
    before = cluster.step
    shout = [sys.executable, noise.__file__, hosts[0].address, str(PORT), "6"]
    done = subprocess.run(hosts[3].command(shout), capture_output=True, timeout=120, check=True)
    assert int(done.stdout) > 50
    assert cluster.step > before
    everyone_works(cluster)
    assert ps.is_running()
    assert restarts(cluster) == [0, 0, 0]


def test_a_partitioned_ps_is_found_again_as_it_was(cluster: Spread, hosts: list[Host]) -> None:
    pid, before = cluster.pid("ps-0"), cluster.step
    hosts[0].conditions.cut = True
    wait_until(lambda: restarts(cluster)[1] >= 1, "the chief's new start")
    hosts[0].conditions.cut = False
    everyone_works(cluster)
    assert cluster.pid("ps-0") == pid
    assert process_records.live_state(cluster.record("ps-0")) == "running"
    assert cluster.step > before


def test_every_step_was_counted_once(cluster: Spread) -> None:
    """Each life of a worker loses two rollouts at most: the one in play, the one on its way."""
    lives = sum(1 + count for count in restarts(cluster)[1:])
    cluster.leave()
    counted, played = manifest(cluster.run.path).step, ledger.read(cluster.ledger).steps
    assert counted <= played <= counted + lives * 2 * IN_FLIGHT
