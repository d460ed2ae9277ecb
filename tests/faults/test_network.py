"""A bad network between hosts: slower or paused, then on, and no step counted twice.

One cluster on hosts of their own goes through all of it, test after test.
"""

import contextlib
import functools
import os
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from a3c.process import process_records
from tests.faults import faulty_envs
from tests.faults import simulated_network as network
from tests.faults.simulated_network import Conditions, Host
from tests.faults.spread_cluster import PORT, HostCluster, host_cluster
from tests.runs import goes_on, manifest, wait_until

pytestmark = pytest.mark.skipif(bool(network.why_not()), reason=network.why_not())

# TCP sends again after twice the last wait: a call that five silent seconds hit may take ten.
ROLLOUT = ("--envs-per-worker", "4", "--rollout-length", "10")
SETTINGS = (*faulty_envs.PACED, *ROLLOUT, "--ps-timeout", "25")
IN_FLIGHT = 4 * 10  # steps of one rollout

HTTP = b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n"
TLS = bytes.fromhex("16030100c8010000c40303") + bytes(189)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the start of gRPC, followed by nonsense


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Hosts for the ps, the chief, another worker, and a stranger."""
    with network.hosts(4) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    scratch = tmp_path_factory.mktemp("network")
    with host_cluster(scratch / "run", scratch / "ledger", hosts[:3], *SETTINGS) as made:
        files = [made.run.metrics(name) for name in ("worker-0", "worker-1")]
        wait_until(lambda: all(file.exists() for file in files), "training")
        yield made


@pytest.fixture(autouse=True)
def good_network(hosts: list[Host]) -> Iterator[None]:
    """Mend the network after each test, so that a failure fails no later test."""
    yield
    for host in hosts:
        host.conditions = Conditions()


def restarts(cluster: HostCluster) -> list[int]:
    return [cluster.record(name).restarts for name in cluster.hosts]


def everyone_works(cluster: HostCluster) -> None:
    workers = [name for name in cluster.hosts if name != "ps-0"]
    wait_until(goes_on(cluster.run, *workers), "every worker's metrics")


@pytest.mark.parametrize(
    ("host", "conditions", "meanwhile"),
    [
        (2, Conditions(loss=0.3), ["worker-0"]),
        (0, Conditions(delay_s=0.15), ["worker-0", "worker-1"]),  # 300 ms there and back
        (1, Conditions(cut=True), []),
    ],
    ids=["lossy", "slow", "silent"],
)
def test_five_seconds_of_a_bad_link_restart_nobody(
    cluster: HostCluster, hosts: list[Host], host: int, conditions: Conditions, meanwhile: list[str]
) -> None:
    hosts[host].conditions = conditions
    for name in meanwhile:
        wait_until(goes_on(cluster.run, name), f"{name} at work in the meantime")
    time.sleep(5)
    hosts[host].conditions = Conditions()
    everyone_works(cluster)
    assert restarts(cluster) == [0, 0, 0]


def shout(address: tuple[str, int], seconds: float) -> int:
    """Send to a port what scanners send, and hold idle connections open; returns how often."""
    until, said = time.monotonic() + seconds, 0
    with contextlib.ExitStack() as stack:
        connect = functools.partial(socket.create_connection, address, timeout=5)
        idle = [stack.enter_context(connect()) for _ in range(100)]
        while time.monotonic() < until:
            for words in (os.urandom(4096), HTTP, TLS, HTTP2 + os.urandom(512), b""):
                with contextlib.suppress(OSError), connect() as one:
                    one.sendall(words)
                    said += 1
            for slow in idle:
                with contextlib.suppress(OSError):
                    slow.send(b"P")
            time.sleep(0.05)
    return said


def test_noise_at_the_port_of_the_ps_is_harmless(cluster: HostCluster, hosts: list[Host]) -> None:
    ps = psutil.Process(cluster.pid("ps-0"))
    before = cluster.step
    said = network.in_namespace(hosts[3].namespace, lambda: shout((hosts[0].address, PORT), 6.0))
    assert said > 50
    assert cluster.step > before
    everyone_works(cluster)
    assert ps.is_running()
    assert restarts(cluster) == [0, 0, 0]


def test_a_partitioned_ps_comes_back_unchanged(cluster: HostCluster, hosts: list[Host]) -> None:
    pid, before = cluster.pid("ps-0"), cluster.step
    hosts[0].conditions.cut = True
    wait_until(lambda: restarts(cluster)[1] >= 1, "the chief's new start")
    hosts[0].conditions.cut = False
    everyone_works(cluster)
    assert cluster.pid("ps-0") == pid
    assert process_records.live_state(cluster.record("ps-0")) == "running"
    assert cluster.step > before


def test_every_step_was_counted_once(cluster: HostCluster) -> None:
    """Each life of a worker loses two rollouts at most: the one in play, the one on its way."""
    lives = sum(1 + count for count in restarts(cluster)[1:])
    cluster.leave()
    counted, played = manifest(cluster.run.path).step, faulty_envs.played(cluster.ledger).steps
    assert counted <= played <= counted + lives * 2 * IN_FLIGHT
