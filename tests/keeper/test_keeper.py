"""A keeper's record, log, echo and environment, and what it refuses."""

import dataclasses
import errno
import json
import os
import re
import resource
import subprocess
from pathlib import Path
from unittest import mock

import psutil
import pytest

from a3c.keeper import spawn
from a3c.keeper.restarts import Limits
from a3c.keeper.spec import parse
from a3c.process.heartbeat import VARIABLE
from tests import Patch, not_none
from tests.keeper.conftest import BEAT, PYTHON, Start, make_spec, wait_for


def test_the_record_can_be_read_at_any_moment(start: Start) -> None:
    kept = start(f"{BEAT}; echo life; exit 75", limits=Limits(100, 5, 0.0, 0.0))
    wait_for(kept.spec.record.exists)
    seen: set[str] = set()
    while kept.process.poll() is None and len(seen) < 30:
        record = json.loads(kept.spec.record.read_text())
        assert record["name"] == "worker-0"
        seen.add(record["updated_at"])
    assert len(seen) == 30


def test_the_record_says_what_it_must_and_nothing_of_the_environment(start: Start) -> None:
    environment = {**os.environ, "SECRET_TOKEN": "hunter2"}
    kept = start(["sh", "-c", f"{BEAT}; exec sleep 1000"], {"env": environment})
    kept.wait_record(lambda record: record.state == "running")
    text = kept.spec.record.read_text()
    record = json.loads(text)
    child = psutil.Process(record["pid"])
    assert record["create_time"] == pytest.approx(child.create_time(), abs=0.02)
    assert record["keeper"]["pid"] == kept.process.pid == child.ppid()
    assert record["address"] == "127.0.0.1:1234"
    assert record["argv"] == ["sh", "-c", f"{BEAT}; exec sleep 1000"]
    assert record["log"] == kept.spec.log
    assert "hunter2" not in text
    assert "SECRET_TOKEN" not in text


def test_files_are_private(start: Start) -> None:
    kept = start("true")
    kept.ended()
    run = kept.spec.record.parent.parent
    assert {path.stat().st_mode & 0o777 for path in run.rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (run, *run.iterdir())} == {0o700}
    names = {path.name for path in kept.spec.record.parent.iterdir()}
    assert names == {"worker-0.heartbeat", "worker-0.json"}


def test_training_goes_on_while_the_log_has_no_room(start: Start) -> None:
    kept = start(
        "for i in 1 2 3; do echo line $i; done; echo done > done",
        {"stdout": subprocess.PIPE},
        log="/dev/full",
        echo=True,
    )
    output, _ = kept.process.communicate(timeout=20)
    assert kept.record().state == "done"
    assert output.count("No space left on device") == 1
    assert "line 3" in output


def test_record_and_log_go_on_when_a_full_disk_has_room_again(start: Start) -> None:
    def allow_no_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    script = "echo early; until [ -e go ]; do sleep 0.01; done; echo late; exec sleep 1000"
    kept = start(script, {"preexec_fn": allow_no_files, "stdout": subprocess.PIPE}, echo=True)
    assert any("early" in line for line in not_none(kept.process.stdout))
    assert not kept.spec.record.exists()
    assert kept.log() == ""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(kept.process.pid, resource.RLIMIT_FSIZE, unlimited)
    kept.file("go").touch()
    kept.wait_record(lambda record: "late" in record.output_tail)
    assert re.match(r"\nkeeper: \d+ bytes of output were lost here\n", kept.log())
    assert kept.log().endswith("\nlate\n")


def test_a_reader_that_never_reads_stops_nothing_and_takes_little_memory(start: Start) -> None:
    script = f"head -c 1000000 /dev/zero; {BEAT}; until [ -e go ]; do sleep 0.01; done"
    kept = start(script, {"stdout": subprocess.PIPE}, echo=True)
    kept.wait_record(lambda record: record.state == "running")
    keeper, guardian = psutil.Process(kept.process.pid), psutil.Process(kept.guardian())
    assert keeper.memory_info().rss < 20e6
    assert keeper.memory_full_info().pss + guardian.memory_full_info().pss < 20e6
    kept.file("go").touch()
    assert kept.ended().state == "done"
    assert Path(kept.spec.log).stat().st_size > 1_000_000


def test_a_process_that_closes_its_output_is_still_kept(start: Start) -> None:
    kept = start("exec >&- 2>&-; until [ -e go ]; do sleep 0.01; done; exit 3")
    keeper = psutil.Process(kept.process.pid)
    kept.child()
    sleeps = keeper.num_ctx_switches().voluntary
    wait_for(lambda: keeper.num_ctx_switches().voluntary >= sleeps + 3)
    kept.file("go").touch()
    assert kept.ended().state == "failed"
    assert kept.process.returncode == 3


def test_the_echo_holds_what_the_log_holds(start: Start) -> None:
    kept = start(
        "echo out; echo err >&2; printf unfinished", {"stdout": subprocess.PIPE}, echo=True
    )
    output, _ = kept.process.communicate(timeout=20)
    assert output == kept.log()
    own = [line for line in output.splitlines() if "keeper:" not in line]
    assert own == ["out", "err", "unfinished"]


def test_a_process_gets_its_environment_less_proxies_and_a_session_of_its_own(start: Start) -> None:
    dropped = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "TF_GRPC_REUSE_PORT"), "1")
    passed = {**os.environ, "no_proxy": "localhost", "ODD": "tab\tquote'\"\nline"}
    environment = {**passed, **dropped, VARIABLE: "of an outer keeper"}
    code = (
        "import json, os, signal, sys;"
        "session = os.getsid(0) == os.getpgrp() == os.getpid();"
        "blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, ())];"
        "open_files = sorted(map(int, os.listdir('/proc/self/fd')))[:3];"
        "given = [{**os.environ}, sys.argv[1:], sys.stdin.read()];"
        "print(json.dumps([*given, session, blocked, open_files]))"
    )
    arguments = ["a b", "--", "", "ü", "$HOME"]
    kept = start([*PYTHON, code, *arguments], {"env": environment}, environment={"EXTRA": "a=b"})
    kept.ended()
    line = next(t for t in kept.log().splitlines() if t.startswith("["))
    seen, argv, stdin, *own = json.loads(line)
    expected = {**passed, "EXTRA": "a=b", VARIABLE: str(kept.spec.heartbeat)}
    expected.pop("PYTHONPATH", None)  # the keeper's begins with the repository
    assert {name: seen.get(name) for name in expected} == expected
    assert not set(dropped) & set(seen)
    assert (argv, stdin, own) == (arguments, "", [True, [], [0, 1, 2]])


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_keeper_without_a_standard_stream_works(start: Start, stream: int) -> None:
    kept = start("echo out; echo err >&2", {"preexec_fn": lambda: os.close(stream)}, echo=True)
    assert kept.ended().state == "done"
    assert kept.log().count("\nout\nerr\n") == 1
    assert kept.log().count("\n") == 4


def test_a_command_that_is_not_there_fails_and_is_named(start: Start) -> None:
    kept = start(["/no/such/program"])
    record = kept.ended()
    assert kept.process.returncode == 127
    assert record.state == "failed"
    (*_, error) = record.first_error or ()
    what = f"cannot start '/no/such/program' in {kept.spec.directory}"
    assert error.endswith(f"{what}: No such file or directory")


def test_a_second_keeper_of_the_same_record_is_refused_while_the_first_lives(start: Start) -> None:
    first = start("exec sleep 1000")
    pid = first.child()
    second = start("exec sleep 1000", {"stderr": subprocess.PIPE})
    _, error = second.process.communicate(timeout=20)
    assert second.process.returncode == 2
    assert f"already has a keeper, pid {first.process.pid}" in error
    assert first.child() == pid
    first.process.kill()
    first.process.wait()
    assert start("true").ended().state == "done"


def test_a_directory_that_cannot_be_made_is_bad_usage(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = start("true", {"stderr": subprocess.PIPE}, log=str(tmp_path / "file" / "logs" / "log"))
    _, error = kept.process.communicate(timeout=20)
    assert kept.process.returncode == 2
    assert error.startswith("keeper: cannot make ")
    assert error.count("\n") == 1


def test_a_spec_survives_its_command_line() -> None:
    plain = make_spec(Path("a b"), "sh", "--", "x y", name="-odd name:0")
    full = dataclasses.replace(
        plain,
        heartbeat=Path("h\udcff"),
        grace_s=2,
        limits=Limits(1, 2, 3.0, 4.0),
        parent=7,
        environment={"A": "b=c", "B": ""},
        directory="/",
    )
    for spec in (plain, full):
        assert parse(spec.command()[4]) == spec


def test_at_the_limit_of_processes_a_keeper_waits_for_its_guardian(monkeypatch: Patch) -> None:
    full = [OSError(number, "") for number in (errno.EAGAIN, errno.ENOMEM)]
    popen = mock.Mock(side_effect=[*full, mock.DEFAULT])
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(spawn, "_prctl", mock.Mock())  # this process adopts none
    spawn.Guardian()
    assert popen.call_count == 3
    monkeypatch.setattr(spawn, "GUARDIAN_WITHIN_S", 0.0)
    popen.side_effect = full
    with pytest.raises(OSError):
        spawn.Guardian()
