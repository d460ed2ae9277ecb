"""The network that the keepers of a run share, and how they find it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a3c.errors import UserError
from a3c.keeper import namespaces
from a3c.run.rundir import REPOSITORY
from tests.isolation import needs_namespaces

pytestmark = needs_namespaces

JOINS = """
import os, sys, pathlib
from a3c.keeper import namespaces
found = namespaces.join(pathlib.Path(sys.argv[1]))
print(os.fstat(found.network).st_ino, flush=True)
sys.stdin.read()
"""
Join = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the holders are listed."""
    return tmp_path / ".network"


@pytest.fixture
def join(file: Path) -> Iterator[Join]:
    """Starts a process that joins the network and holds it."""
    started = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", JOINS, str(file)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def inode(process: subprocess.Popen[str]) -> str:
    """The network that a process found."""
    assert process.stdout
    return process.stdout.readline().strip()


def end(*processes: subprocess.Popen[str]) -> None:
    """Kill processes and wait for them."""
    for process in processes:
        process.kill()
        process.wait()


def test_all_that_start_at_once_share_one_network(join: Join, file: Path) -> None:
    assert len({inode(process) for process in [join() for _ in range(6)]}) == 1
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_is_found_as_long_as_anybody_holds_it(join: Join, file: Path) -> None:
    first = join()
    there = inode(first)
    second = join()
    assert inode(second) == there
    end(first)
    with file.open("a") as lines:
        lines.write('[1, "a line that a killed keeper')
        lines.write('\n{"not": "a holder"}\n[0, "", 0, null]\n')
    third = join()
    assert inode(third) == there
    end(second, third)
    last = join()
    assert inode(last)
    assert [json.loads(line)[0] for line in file.read_text().splitlines()] == [last.pid]


def test_a_link_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot write"):
        namespaces.join(file)
    assert not (tmp_path / "elsewhere").exists()
