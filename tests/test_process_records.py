"""Records of processes: atomic writes, safe reads, and pids that may be reused."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from a3c.process import process_records
from a3c.process.process_records import Identity, LastExit
from tests import Patch, not_none
from tests.fake_runs import dead, myself, process_record
from tests.runs import Python, wait_until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "processes").mkdir()
    return tmp_path / "processes"


def test_records_are_read_as_they_were_written_by_role_and_task(directory: Path) -> None:
    details = {
        "last_exit": LastExit(None, "SIGKILL", "2026-01-01T00:00:00+00:00", "heartbeat"),
        "first_error": ("Traceback", "ValueError: ü"),
        "output_tail": ("one", "two"),
    }
    records = [
        process_record(f"worker-{task}", "running", child, dead(), **details)
        for task, child in ((0, None), (9, myself()), (10, myself()))
    ]
    for record in reversed(records):
        process_records.write_json(directory / f"{record.name}.json", record)
    assert process_records.read_records(directory.parent) == records
    names = {f"worker-{task}.json" for task in (0, 9, 10)}
    assert {path.name for path in directory.iterdir()} == names


def test_a_file_is_written_whole_or_stays_as_it_was(directory: Path, monkeypatch: Patch) -> None:
    path = directory / "file"
    for contents in ("ü\udcff", b"\xff\x00"):
        process_records.write_atomically(path, contents)
        assert path.read_bytes() == (b"\xc3\xbc\xff" if isinstance(contents, str) else contents)
    monkeypatch.setattr(os, "fsync", lambda _: os.close(-1))  # raises OSError
    with pytest.raises(OSError):
        process_records.write_atomically(path, "new")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        process_records.write_atomically(path, "new")
    assert [(file, file.read_bytes()) for file in directory.iterdir()] == [(path, b"\xff\x00")]


def test_a_folder_that_cannot_be_read_or_flushed_is_no_error(
    directory: Path, monkeypatch: Patch
) -> None:
    process_records.sync_directory(Path("/proc"))  # its fsync is EINVAL
    monkeypatch.setattr(os, "fsync", lambda _: os.close(-1))
    with pytest.raises(OSError):
        process_records.sync_directory(directory)
    monkeypatch.setattr(os, "open", mock.Mock(side_effect=PermissionError))  # root may read all
    process_records.sync_directory(directory)


def test_files_that_are_no_records_are_skipped(directory: Path) -> None:
    whole = json.dumps(dataclasses.asdict(process_record("worker-0", "running", myself(), dead())))
    (directory / "half.json").write_text(whole[: len(whole) // 2])
    (directory / "empty.json").write_text("")
    (directory / "foreign.json").write_text('{"name": "x"}')
    (directory / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (directory / "deep.json").write_text("[" * 100_000)
    (directory / "directory.json").mkdir()
    os.mkfifo(directory / "pipe.json")
    (directory / ".worker-0.json.tmp").write_text(whole)
    assert process_records.read_records(directory.parent) == []
    assert process_records.read_records(directory / "no such run") == []
    assert process_records.read_record(directory / ("a name that no file can have" * 10)) is None


def test_a_pid_is_valid_only_with_its_birth() -> None:
    me = myself()

    def is_alive(**changes: Any) -> bool:
        return process_records.is_alive(dataclasses.replace(me, **changes))

    assert me.create_time == pytest.approx(psutil.Process().create_time(), abs=0.02)
    assert is_alive(create_time=me.create_time + 86_400.0)  # the wall clock was set
    assert not is_alive(birth="another boot/1")
    assert not is_alive(birth=None)
    for pid in (None, 0, -1, 10**30):
        assert not is_alive(pid=pid)


def test_a_state_is_valid_while_process_or_keeper_is_alive() -> None:
    def live_state(child: Identity | None, keeper: Identity, state: str) -> str:
        return process_records.live_state(process_record("worker-0", state, child, keeper))

    for state in ("starting", "running", "restarting"):
        assert live_state(dead(), dead(), state) == live_state(None, dead(), state) == "dead"
        assert live_state(myself(), myself(), state) == live_state(None, myself(), state) == state
        assert live_state(dead(), myself(), state) == "restarting"
    for state in ("done", "failed", "stopped"):
        assert live_state(None, dead(), state) == state


def test_pids_of_other_hosts_or_births_are_not_signalled_nor_zombies_alive(python: Python) -> None:
    record = process_record("worker-0", "running", dead(), myself(), host="elsewhere.invalid")
    assert process_records.live_state(record) == "running"
    assert process_records.terminate(record) is False
    process = python("input()")
    identity = not_none(process_records.identify(process.pid))
    reused = dataclasses.replace(identity, birth="another boot/1")
    record = process_record("worker-0", "running", None, reused)
    assert process_records.terminate(record) is False
    assert process_records.terminate(record, now=True) is False
    assert process_records.is_alive(identity)
    not_none(process.stdin).write(b"\n")
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    assert not process_records.is_alive(identity)
    assert process.wait() == 0


def test_tunnels_that_every_new_network_has_are_no_way_in(monkeypatch: Patch) -> None:
    """Linux makes them where the module of their kind is loaded, as in WSL 2."""
    head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
    for names, wanted in (
        (("lo",), True),
        (("lo", "tunl0", "sit0", "gre0", "gretap0", "erspan0", "ip_vti0"), True),
        (("lo", "ip6_vti0", "ip6tnl0", "ip6gre0"), True),
        (("lo", "sit0", "eth0"), False),
        (("lo", "sit1"), False),
    ):
        text = head + "".join(f"{name:>6}: 0 0 0 0\n" for name in names)
        monkeypatch.setattr(Path, "read_text", lambda _, text=text: text)
        assert process_records.has_loopback_only(1) == wanted, names
