"""Whole runs that nobody else on the machine can connect to, and who is told of others."""

import signal
import sys
from pathlib import Path

import pytest

from a3c.cluster.topology import split_address
from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch import status
from tests import Patch, isolation, runs
from tests.isolation import network_of, record_of


@isolation.needs_user_namespaces
@isolation.needs_namespaces
def test_an_ordinary_user_trains_in_isolation(path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOME_TOKEN", runs.ONLY_IN_ENVIRONMENT)
    flags = ("--isolation", "on", *runs.ENDLESS)
    with runs.running(path, *flags, prefix=isolation.ORDINARY_USER) as process:
        ps = record_of(path, "ps-0").pid or 0
        network = network_of(ps)
        assert network_of(ps, "user") != network_of(process.pid, "user")
        isolation.assert_cut_off(path)
        said = runs.stop(process)
    assert "not isolated" not in said
    runs.assert_private(path)
    assert runs.everything_ended(path)
    isolation.assert_vanishes(network, path)


def test_without_isolation_launcher_and_status_say_who_can_get_in(path: Path) -> None:
    with runs.running(path, "--isolation", "off", "--workers", "1", *runs.ENDLESS) as process:
        host, port = split_address(record_of(path, "ps-0").address)
        runs.wait_until(lambda: isolation.connects((host, port)), "a server that anybody reaches")
        found = status.read(RunDir(path), usage=True)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, said = runs.finish(process)
    assert [line for line in said.splitlines() if "not isolated" in line and "run code" in line]
    assert f"port {port} is open: anyone who can reach" in (path / "logs" / "ps-0.log").read_text()
    assert found.is_isolated is False
    assert any(place.startswith("ps-0 ") for place in found.exposed)
    verb = "listens" if len(found.exposed) == 1 else "listen"
    warning = next(line for line in found.warnings if f" {verb} on all interfaces" in line)
    assert "ps-0" in warning


@isolation.needs_user_namespaces
@pytest.mark.parametrize("wanted", ["on", "auto"])
def test_where_the_kernel_forbids_it_one_line_says_so(path: Path, wanted: str) -> None:
    flags = ("--run-dir", str(path), "--isolation", wanted, "--dry-run")
    done = runs.call(*isolation.FORBIDDEN, *runs.launcher(*runs.CARTPOLE, *flags))
    lines = [line for line in done.stderr.splitlines() if "unshare: No space left" in line]
    assert (done.returncode, len(lines)) == ((2, 1) if wanted == "on" else (0, 1)), done.stderr
    assert ("--isolation" in lines[0]) == (wanted == "on")
    assert list(path.parent.iterdir()) == []


TRIES_TO_CONNECT = """
import sys, urllib.request, worker
from a3c.keeper import namespaces
for place in ("outside", "inside"):
    if place == "inside":
        namespaces.create()
    print(place, file=sys.stderr)
    try:
        urllib.request.urlopen("http://127.0.0.1:1/")
    except OSError as error:
        failed = RuntimeError("the environment failed")
        failed.__cause__ = error
        worker._hint_at_isolation(failed)
"""


@isolation.needs_namespaces
def test_an_environment_that_needs_a_network_is_told_about_isolation() -> None:
    done = runs.call(sys.executable, "-c", TRIES_TO_CONNECT, cwd=REPOSITORY, check=True)
    outside, _, inside = done.stderr.partition("\ninside\n")
    assert "give --isolation off" in inside
    assert "give --isolation off" not in outside
