"""The network that the keepers of a run share, and how they find it."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from a3c.keeper import namespaces
from a3c.process.process_records import Identity
from tests import Patch, refused
from tests.isolation import needs_namespaces
from tests.runs import Python, line_of

pytestmark = needs_namespaces

JOINS = """
import os, sys, pathlib
from a3c.keeper import namespaces
namespaces.join(pathlib.Path(sys.argv[1]))
print(os.stat("/proc/self/ns/net").st_ino, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".network"


def test_all_that_start_at_once_share_one_network(python: Python, file: Path) -> None:
    processes = [python(JOINS, file) for _ in range(6)]
    assert len({line_of(process.stdout) for process in processes}) == 1
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_network_is_found_while_it_has_members(python: Python, file: Path) -> None:
    earlier = Identity(os.getpid(), 0.0, "of a process with the pid of this one, which is outside")
    file.write_text(json.dumps(dataclasses.asdict(earlier)) + "\n")
    first = python(JOINS, file)
    there = line_of(first.stdout)
    assert int(there) != Path("/proc/self/ns/net").stat().st_ino
    second = python(JOINS, file)
    assert line_of(second.stdout) == there
    first.kill()
    first.wait()
    with file.open("a") as lines:
        lines.write('[1, "a line that a killed keeper')
        lines.write('\n{"not": "a member"}\n[0, "", 0, null]\nnull\n')
    third = python(JOINS, file)
    assert line_of(third.stdout) == there
    for process in (second, third):
        process.kill()
        process.wait()
    last = python(JOINS, file)
    assert line_of(last.stdout)
    assert [json.loads(line)["pid"] for line in file.read_text().splitlines()] == [last.pid]


def test_a_member_makes_no_second_network(python: Python, file: Path, monkeypatch: Patch) -> None:
    """Its processes would wait for a ps that is in the other one."""

    def refuse(name: str, *_arguments: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)

    line_of(python(JOINS, file).stdout)
    members = file.read_bytes()
    monkeypatch.setattr(namespaces, "_call", refuse)
    refused("setns: Operation not permitted", namespaces.join, file)
    assert file.read_bytes() == members


def test_a_link_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "elsewhere")
    refused("cannot write", namespaces.join, file)
    assert not (tmp_path / "elsewhere").exists()
