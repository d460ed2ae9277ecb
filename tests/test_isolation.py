"""Nobody in: whole runs that nobody else on the machine can connect to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from a3c.cluster.topology import split_address
from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run.rundir import REPOSITORY
from tests.clusters import launcher
from tests.isolation import (
    FORBIDDEN,
    ORDINARY_USER,
    addresses_here,
    connects,
    connects_inside,
    needs_namespaces,
    needs_user_namespaces,
    network_of,
    networks_in_use,
)
from tests.runs import (
    CARTPOLE,
    DEADLINE_S,
    everything_ended,
    finish,
    is_training,
    running,
    wait_until,
)
from tests.tmux_runs import Tmux

ONLY_IN_ENVIRONMENT = "only-in-the-environment-7d1f"
ENDLESS = ("--max-env-steps", "100000000", "--stop-at-return", "none")


def record_of(path: Path, name: str) -> ProcessRecord:
    """The record of a process that runs."""

    def found() -> ProcessRecord | None:
        record = process_records.read_record(path / "processes" / f"{name}.json")
        return record if record and record.pid and record.state == "running" else None

    there: ProcessRecord = wait_until(found, f"{name} at work")
    return there


def status(path: Path) -> dict[str, Any]:
    """What `status --json` says, seen from outside."""
    command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "status", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_cut_off(path: Path) -> str:
    """Assert that nobody outside reaches the run's servers while they serve; its network."""
    records = [record_of(path, name) for name in ("ps-0", "worker-0", "worker-1")]
    networks = {network_of(record.pid or 0) for record in records}
    assert len(networks) == 1
    assert networks.isdisjoint({network_of(os.getpid())})
    for record in records:
        _, port = split_address(record.address)
        assert connects_inside(record.pid or 0, port)
        assert not any(connects((host, port)) for host in addresses_here())
        assert "is open to" not in Path(record.log).read_text()
    found = status(path)
    assert (found["is_isolated"], found["exposed"]) == (True, [])
    assert not any("listen" in warning for warning in found["warnings"])
    return networks.pop()


def assert_private(path: Path) -> None:
    """Assert that only their owner gets at a run's files, and that no secret is in them."""
    below = list(path.rglob("*"))
    assert {file.stat().st_uid for file in [path, *below]} == {os.getuid()}
    folders = [path, *(path / part for part in ("logs", "processes", "checkpoints", "metrics"))]
    assert [folder for folder in folders if folder.stat().st_mode & 0o077] == []
    readable = [*path.glob("*.json"), *path.glob("logs/*"), *path.glob("processes/*.json")]
    assert [file for file in readable if file.stat().st_mode & 0o077] == []
    assert [
        f for f in below if f.is_file() and ONLY_IN_ENVIRONMENT.encode() in f.read_bytes()
    ] == []


def assert_vanishes(network: str) -> None:
    """Assert that nobody is in a network or holds it any more, soon."""
    wait_until(lambda: network not in networks_in_use(), "the end of the network", 20)


@needs_namespaces
def test_nobody_else_reaches_a_run_and_its_network_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with running(path, "--isolation", "on", *ENDLESS) as process:
        wait_until(lambda: is_training(path), "training")
        network = assert_cut_off(path)
        lost = record_of(path, "worker-1")
        os.kill(lost.pid or 0, signal.SIGKILL)
        wait_until(lambda: record_of(path, "worker-1").restarts == 1, "worker-1 at work again")
        assert assert_cut_off(path) == network
        process.kill()
    wait_until(lambda: everything_ended(path), "the end of all processes")
    assert_vanishes(network)


@needs_user_namespaces
@needs_namespaces
def test_an_ordinary_user_trains_in_isolation(tmp_path: Path) -> None:
    path = tmp_path / "run"
    goal = ("--isolation", "on", "--max-env-steps", "100000000", "--stop-at-return", "none")
    command = [*ORDINARY_USER, *launcher(*CARTPOLE, "--run-dir", str(path), *goal)]
    environment = {**os.environ, "SOME_TOKEN": ONLY_IN_ENVIRONMENT}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            ps = record_of(path, "ps-0")
            network = network_of(ps.pid or 0)
            assert network_of(ps.pid or 0, "user") != network_of(process.pid, "user")
            assert_cut_off(path)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "not isolated" not in said
    assert_private(path)
    assert everything_ended(path)
    assert_vanishes(network)


def test_without_isolation_launcher_and_status_say_who_can_get_in(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with running(path, "--isolation", "off", *ENDLESS) as process:
        _, port = split_address(record_of(path, "ps-0").address)
        wait_until(lambda: connects(("127.0.0.1", port)), "a server that anybody reaches")
        found = status(path)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, said = finish(process)
    assert [line for line in said.splitlines() if "not isolated" in line and "run code" in line]
    assert f"port {port} is open to whoever reaches" in (path / "logs" / "ps-0.log").read_text()
    assert found["is_isolated"] is False
    assert any(place.startswith("ps-0 ") for place in found["exposed"])
    warning = next(line for line in found["warnings"] if "listen on all interfaces" in line)
    assert "ps-0" in warning


@needs_user_namespaces
@pytest.mark.parametrize("wanted", ["on", "auto"])
def test_where_the_kernel_forbids_it_one_line_says_so(tmp_path: Path, wanted: str) -> None:
    run = tmp_path / "run"
    command = launcher(*CARTPOLE, "--run-dir", str(run), "--isolation", wanted, "--dry-run")
    done = subprocess.run(
        [*FORBIDDEN, *command], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    lines = [line for line in done.stderr.splitlines() if "unshare: No space left" in line]
    assert (done.returncode, len(lines)) == ((2, 1) if wanted == "on" else (0, 1)), done.stderr
    assert ("--isolation" in lines[0]) == (wanted == "on")
    assert list(tmp_path.iterdir()) == []


TRIES_TO_CONNECT = """
import sys, urllib.request, worker
from a3c.keeper import namespaces
if sys.argv[1] == "inside":
    namespaces.enter(namespaces.make())
with worker._hint_at_isolation():
    try:
        urllib.request.urlopen("http://127.0.0.1:1/")
    except OSError as error:
        raise RuntimeError("the environment failed") from error
"""


@needs_namespaces
@pytest.mark.parametrize("place", ["inside", "outside"])
def test_an_environment_that_needs_a_network_is_told_about_isolation(place: str) -> None:
    command = [sys.executable, "-c", TRIES_TO_CONNECT, place]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "RuntimeError: the environment failed" in done.stderr
    assert ("give --isolation off" in done.stderr) == (place == "inside")


@needs_namespaces
def test_in_tmux_too_nobody_reaches_a_run(tmux: Tmux) -> None:
    path = tmux.start("run", "--workers", "2", "--isolation", "on")
    wait_until(lambda: is_training(path), "training")
    network = assert_cut_off(path)
    assert tmux.launch("restart", "worker-1", "--run", "run").returncode == 0
    wait_until(lambda: record_of(path, "worker-1").restarts == 1, "worker-1 at work again")
    assert network_of(record_of(path, "worker-1").pid or 0) == network
    assert tmux.launch("stop", "run").returncode == 0
    assert everything_ended(path)
    assert_vanishes(network)
