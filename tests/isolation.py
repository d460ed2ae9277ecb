"""For tests of isolation: what this machine allows, lesser users, and who reaches what."""

import contextlib
import glob
import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from a3c.cluster.topology import split_address
from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch import status
from tests import not_none
from tests.runs import call, wait_until

CONNECT_INSIDE = """
import socket, sys
from a3c.keeper.namespaces import enter
from a3c.process.process_records import identify
enter(identify(int(sys.argv[1])))
socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=10).close()
"""


def _said(*command: str) -> str:
    done = call(*command, cwd=REPOSITORY)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "no reason given"


NO_NAMESPACE = _said(sys.executable, "-m", "a3c.keeper.namespaces")
needs_namespaces = pytest.mark.skipif(
    bool(NO_NAMESPACE), reason=f"the kernel forbids network namespaces: {NO_NAMESPACE}"
)

# A user without any rights beyond those over their own files, also where the tests are run by root.
ORDINARY_USER = (
    ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
)
_NO_USER = _said(*(ORDINARY_USER or ["unshare", "--user"]), "true")
needs_user_namespaces = pytest.mark.skipif(
    bool(_NO_USER), reason=f"the kernel forbids user namespaces: {_NO_USER}"
)

# A user whom the kernel gives no network namespace, as some distributions do by default.
FORBIDDEN = [
    *("unshare", "--user", "--map-root-user"),
    *("sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh"),
]


def connects(address: tuple[str, int]) -> bool:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as visitor:
        visitor.settimeout(5.0)
        return visitor.connect_ex(address) == 0


def network_of(pid: int, kind: str = "net") -> str:
    """What tells the namespace of a process from others."""
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def users_of(network: str) -> set[int]:
    """The processes that are in a network, or hold a descriptor of it."""
    found = set()
    for place in ("ns/net", "fd/*"):
        for link in glob.iglob(f"/proc/[0-9]*/{place}"):  # noqa: PTH207 - Path.glob raises
            with contextlib.suppress(OSError):  # it has ended since
                if str(Path(link).readlink()) == network:
                    found.add(int(link.split("/")[2]))
    return found


def has_started(pid: int, before: float) -> bool:
    """Whether a process lives that has started before a time of the clock."""
    seen = process_records.identify(pid)
    if seen is None:
        return False
    ticks = int(not_none(seen.birth).rpartition("/")[2])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s < before


def record_of(path: Path, name: str) -> ProcessRecord:
    def found() -> ProcessRecord | None:
        record = process_records.read_record(path / "processes" / f"{name}.json")
        return record if record and record.pid and record.state == "running" else None

    return wait_until(found, f"{name} at work")


def assert_cut_off(path: Path) -> str:
    """Assert that nobody outside reaches the run's servers while they serve; its network."""
    records = [record_of(path, name) for name in ("ps-0", "worker-0", "worker-1")]
    networks = {network_of(record.pid or 0) for record in records}
    assert len(networks) == 1
    assert networks.isdisjoint({network_of(os.getpid())})
    addresses = [a for addresses in psutil.net_if_addrs().values() for a in addresses]
    here = [a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
    for record in records:
        _, port = split_address(record.address)
        assert _said(sys.executable, "-c", CONNECT_INSIDE, f"{record.pid}", f"{port}") == ""
        assert not any(connects((host, port)) for host in here)
        assert "is open to" not in Path(record.log).read_text()
    found = status.read(RunDir(path), usage=True)
    assert (found.is_isolated, found.exposed) == (True, ())
    assert not any("listen" in warning for warning in found.warnings)
    return networks.pop()


def assert_vanishes(network: str, path: Path) -> None:
    """Assert that the network of a run that has ended goes with its processes.

    The kernel gives its number to the next network, such as that of another test's run. Processes
    that have started since the run's end are in that one.
    """
    end = max(record.stat().st_mtime for record in (path / "processes").glob("*.json"))
    wait_until(
        lambda: not any(has_started(pid, end) for pid in users_of(network)),
        "the end of the network",
        20,
    )
