"""The listeners of processes, also of those in another network namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from a3c.process import listeners
from a3c.process.listeners import Listener
from a3c.run.rundir import REPOSITORY
from a3c.watch import status
from a3c.watch.snapshot import ProcessStatus
from tests.isolation import needs_namespaces

LISTENS_INSIDE = """
import socket, sys
from a3c.keeper import namespaces
namespaces.create()
four = socket.create_server(("0.0.0.0", 4000))
six = socket.create_server(("::1", 4001), family=socket.AF_INET6)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def inside() -> Iterator[int]:
    """The pid of a process that listens in a network of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS_INSIDE],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate()


def test_the_listeners_are_those_that_psutil_finds() -> None:
    with (
        socket.create_server(("0.0.0.0", 0)),
        socket.create_server(("::1", 0), family=socket.AF_INET6),
        socket.create_server(("::", 0), family=socket.AF_INET6),
    ):
        found = listeners.listeners(os.getpid())
        connections = psutil.Process().net_connections(kind="tcp")
        listening = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
        assert found == sorted(Listener(*address) for address in listening)
        hosts = {listener.host for listener in listeners.faces_outward(os.getpid(), found)}
    assert {"0.0.0.0", "::"} <= hosts
    assert "::1" not in hosts


def test_an_ended_process_has_no_listeners() -> None:
    assert listeners.listeners(2**31 - 1) == []
    assert not listeners.has_loopback_only(2**31 - 1)


@needs_namespaces
def test_listeners_in_a_private_network_are_seen_and_not_exposed(inside: int) -> None:
    found = listeners.listeners(inside)
    assert [str(listener) for listener in found] == ["0.0.0.0:4000", "[::1]:4001"]
    assert listeners.faces_outward(inside, found) == []
    seen = status.exposure([ProcessStatus("ps-0", "ps", 0, "running", pid=inside)])
    assert seen == {"exposed": (), "is_isolated": True}
    with socket.socket() as visitor:
        assert visitor.connect_ex(("127.0.0.1", 4000)) != 0
