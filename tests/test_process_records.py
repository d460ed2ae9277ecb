"""Records of processes: written whole, read with distrust, believed with their create time only."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c.process import process_records
from a3c.process.process_records import Identity, ProcessRecord
from tests.runs import wait_until


def myself() -> Identity:
    identity = process_records.identify(os.getpid())
    assert identity is not None
    return identity


def gone() -> Identity:
    return Identity(os.getpid(), 1.0, "another boot/1")


def a_record(child: Identity | None, keeper: Identity, state: str = "running") -> ProcessRecord:
    return ProcessRecord(
        name="worker-0",
        role="worker",
        task=0,
        address="127.0.0.1:1234",
        pid=child.pid if child else None,
        create_time=child.create_time if child else None,
        birth=child.birth if child else None,
        state=state,
        restarts=0,
        last_exit=process_records.LastExit(
            None, "SIGKILL", "2026-01-01T00:00:00+00:00", "heartbeat"
        ),
        first_error=("Traceback", "ValueError: ü"),
        output_tail=("one", "two"),
        started_at="2026-01-01T00:00:00+00:00",
        updated_at="2026-01-01T00:00:00+00:00",
        keeper=keeper,
        host=process_records.this_host(),
        log="/run/worker-0.log",
        heartbeat=None,
        argv=("python", "worker.py"),
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    record = a_record(myself(), gone())
    process_records.write_record(tmp_path / "processes" / "worker-0.json", record)
    assert process_records.read_records(tmp_path) == [record]
    assert [path.name for path in (tmp_path / "processes").iterdir()] == ["worker-0.json"]


def test_records_come_by_role_and_task(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    for task in (10, 9, 0):
        record = dataclasses.replace(a_record(None, gone()), name=f"worker-{task}", task=task)
        process_records.write_record(tmp_path / "processes" / f"{record.name}.json", record)
    assert [record.task for record in process_records.read_records(tmp_path)] == [0, 9, 10]


def test_files_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "processes"
    directory.mkdir()
    whole = a_record(myself(), gone()).to_json()
    (directory / "half.json").write_text(whole[: len(whole) // 2])
    (directory / "empty.json").write_text("")
    (directory / "foreign.json").write_text('{"name": "x"}')
    (directory / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (directory / "deep.json").write_text("[" * 100_000)
    (directory / "directory.json").mkdir()
    os.mkfifo(directory / "pipe.json")
    (directory / ".worker-0.json.tmp").write_text(whole)
    assert process_records.read_records(tmp_path) == []
    assert process_records.read_records(tmp_path / "no such run") == []


@given(
    st.sampled_from([field.name for field in dataclasses.fields(ProcessRecord)]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
)
def test_no_value_in_a_record_breaks_its_reader(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    data = json.loads(a_record(gone(), gone()).to_json())
    data[key] = value
    path = tmp_path_factory.getbasetemp() / "record.json"
    path.write_text(json.dumps(data))
    record = process_records.read_record(path)
    if record is not None:
        assert isinstance(process_records.live_state(record), str)
        assert process_records.terminate(record) is False


def test_a_full_disk_leaves_the_old_record_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker-0.json"
    process_records.write_record(path, a_record(None, gone(), "starting"))

    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="No space left"):
        process_records.write_record(path, a_record(None, gone(), "running"))
    record = process_records.read_record(path)
    assert record is not None
    assert record.state == "starting"
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0.json"]


def test_a_pid_is_believed_only_with_its_create_time() -> None:
    me = myself()
    assert me.create_time == pytest.approx(psutil.Process().create_time(), abs=0.02)
    assert process_records.is_alive(me.pid, me.create_time)
    assert not process_records.is_alive(me.pid, me.create_time - 5.0)
    assert not process_records.is_alive(me.pid, None)
    assert not process_records.is_alive(None, me.create_time)
    assert not process_records.is_alive(0, me.create_time)
    assert not process_records.is_alive(-1, me.create_time)
    assert not process_records.is_alive(10**30, me.create_time)


def test_a_step_of_the_wall_clock_does_not_kill_a_process_with_a_birth() -> None:
    me = myself()
    assert process_records.is_alive(me.pid, me.create_time + 86_400.0, me.birth)
    assert not process_records.is_alive(me.pid, me.create_time, "another boot/1")


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_records.identify(child.pid)
    assert identity is not None
    assert child.stdin is not None
    child.stdin.close()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    assert not process_records.is_alive(child.pid, identity.create_time, identity.birth)
    child.wait()


@pytest.mark.parametrize("state", ["starting", "running", "restarting"])
def test_a_record_whose_processes_are_gone_is_dead(state: str) -> None:
    assert process_records.live_state(a_record(gone(), gone(), state)) == "dead"
    assert process_records.live_state(a_record(None, gone(), state)) == "dead"


@pytest.mark.parametrize("state", ["done", "failed", "stopped"])
def test_an_ended_process_keeps_its_state(state: str) -> None:
    assert process_records.live_state(a_record(None, gone(), state)) == state


def test_a_living_process_has_the_state_that_was_recorded() -> None:
    assert process_records.live_state(a_record(myself(), myself())) == "running"
    assert process_records.live_state(a_record(None, myself(), "restarting")) == "restarting"


def test_a_process_is_restarting_while_only_its_keeper_lives() -> None:
    assert process_records.live_state(a_record(gone(), myself())) == "restarting"


def test_records_of_other_hosts_are_passed_on_and_never_signalled() -> None:
    record = dataclasses.replace(a_record(gone(), myself()), host="elsewhere.invalid")
    assert process_records.live_state(record) == "running"
    assert process_records.terminate(record) is False


def test_a_keeper_with_another_create_time_is_never_signalled() -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE
    ) as p:
        identity = process_records.identify(p.pid)
        assert identity is not None
        reused = Identity(p.pid, identity.create_time - 100.0)
        assert process_records.terminate(a_record(None, reused)) is False
        assert process_records.terminate(a_record(None, reused), now=True) is False
        assert process_records.request_restart(a_record(None, reused)) is False
        p.communicate(b"\n")
    assert p.returncode == 0


@pytest.mark.parametrize(("now", "returncode"), [(False, -15), (True, -3)])
def test_a_believed_keeper_is_signalled(now: bool, returncode: int) -> None:
    # What a shell started in the background ignores SIGQUIT, and so do its children.
    code = (
        "import signal; signal.signal(signal.SIGQUIT, signal.SIG_DFL); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        assert p.stdout.readline()
        identity = process_records.identify(p.pid)
        assert identity is not None
        assert process_records.terminate(a_record(None, identity), now=now) is True
        assert p.wait(timeout=20) == returncode
    assert process_records.terminate(a_record(None, identity), now=now) is False


def test_reading_records_imports_no_psutil() -> None:
    code = (
        "import os, sys; from a3c.process import process_records as p;"
        "assert p.identify(os.getpid()); p.read_records(p.Path('.'));"
        "print([m for m in ('psutil', 'numpy', 'tensorflow', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
