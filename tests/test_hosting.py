"""Processes on other hosts, with an ssh that stays on this machine: a keeper, a connection."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import launch_cluster
from a3c.cluster.hostfile import Host
from a3c.cluster.plan import Plan
from a3c.hosts import far_end, near_end, probe
from a3c.keeper.spec import KeeperSpec, Process
from a3c.launch import hosts
from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run import rundir
from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch import status
from tests import Patch, ended, not_none, refused
from tests.fake_runs import configure, dead, process_record
from tests.runs import call, children, is_gone, wait_until

VERBS = ("restart", "remove")

# The last argument is the command, as ssh has it; while there is a file `cut` nobody gets through.
SSH = """#!/bin/sh
[ -e "$(dirname "$0")/cut" ] && { echo "ssh: no route" >&2; exit 255; }
for command; do :; done
exec sh -c "$command"
"""
# Says hello, writes metrics, and leaves when it is asked to, or with the code in a file.
WORK = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
run = pathlib.Path(sys.argv[1])
(run / "metrics").mkdir(parents=True, exist_ok=True)
print("hello", flush=True)
with (run / "metrics/worker-1.jsonl").open("a") as rows:
    while not (code := run / "leave").exists():
        rows.write(f"{time.time()}\\n"), rows.flush(), time.sleep(0.1)
sys.exit(int(code.read_text()))
"""
FOLLOW = """
import sys
from a3c.hosts import near_end
near_end.LAST_RETRIES_S = 1.0
sys.exit(near_end.main())
"""


class Far:
    def __init__(self, tmp_path: Path, monkeypatch: Patch) -> None:
        self.there = RunDir(tmp_path / "there/runs/mine")
        self.run = RunDir(tmp_path / "here/runs/mine")
        self.cut = tmp_path / "bin/cut"
        ssh = tmp_path / "bin/ssh"
        for directory in (self.there.path, self.run.path, ssh.parent):
            directory.mkdir(parents=True)
        (tmp_path / "there/a3c").symlink_to(REPOSITORY / "a3c")
        ssh.write_text(SSH)
        ssh.chmod(0o700)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        host = Host("beta", "10.77.0.2", 1, sys.executable, str(tmp_path / "there"))
        argv = (sys.executable, "-c", WORK, str(self.there.path))
        log = str(self.run.log("worker-1"))
        worker = Process("worker-1", "worker", 1, "10.77.0.2:2222", argv, {}, log, host="beta")
        ps = Process("ps-0", "ps", 0, "10.77.0.1:2222", argv, {}, log)
        self.plan = Plan(str(self.run.path), (ps, worker), hosts=(host,))
        self.plan.save(self.run)
        self.said = tmp_path / "said"
        self.followers: list[subprocess.Popen[bytes]] = []

    def follow(self) -> subprocess.Popen[bytes]:
        with self.said.open("ab") as said:
            command = [sys.executable, "-c", FOLLOW, str(self.run.path), "worker-1"]
            self.followers.append(subprocess.Popen(command, stdout=said, stderr=said))
        return self.followers[-1]

    def record(self) -> ProcessRecord | None:
        """The record over there, while its process lives."""
        record = process_records.read_record(self.there.record("worker-1"))
        return record if record and process_records.is_alive(record) else None

    def at_work(self) -> ProcessRecord:
        record: ProcessRecord = wait_until(self.record, "the process over there")
        self.wait_for("hello")
        return record

    def cut_off(self, follower: subprocess.Popen[bytes]) -> None:
        self.cut.touch()
        for child in children(follower.pid):
            os.kill(child, signal.SIGKILL)
        self.wait_for("no connection to beta")

    def wait_for(self, word: str) -> None:
        wait_until(lambda: self.said.exists() and word in self.said.read_text(), word)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: Patch) -> Iterator[Far]:
    made = Far(tmp_path, monkeypatch)
    yield made
    for follower in made.followers:  # one that is cut off would try again for ever
        follower.kill()
        follower.wait()
    records = process_records.read_records(made.there.path)
    for record in records:
        process_records.terminate(record, now=True)
    wait_until(lambda: not any(map(process_records.keeper_lives, records)), "the keeper's end")


def test_after_a_lost_connection_the_process_runs_on_and_its_metrics_are_complete(far: Far) -> None:
    mirrored = far.run.metrics("worker-1")
    mirrored.parent.mkdir(exist_ok=True)
    mirrored.write_text(earlier := "of another host, before --resume\n" * 1000)
    follower = far.follow()
    pid = far.at_work().pid
    wait_until(lambda: mirrored.stat().st_size > len(earlier) + 10, "metrics here")
    first = mirrored.read_text().splitlines()[1000]

    far.cut_off(follower)
    seen = near_end.read(near_end.path_of(far.run, "worker-1"))
    assert not_none(seen).cut_off_at is not None
    far.cut.unlink()
    far.wait_for("worker-1 is already running")
    assert far.at_work().pid == pid

    follower.terminate()
    assert follower.wait(timeout=60) == 128 + signal.SIGTERM
    assert far.record() is None
    assert far.said.read_text().count("hello") == 1
    rows = far.there.metrics("worker-1").read_text()
    # From the first to the last one, none twice.
    assert mirrored.read_text() == earlier + rows[rows.index(first) :]


def test_a_killed_remote_keeper_is_restarted_and_its_exit_code_passed_on(far: Far) -> None:
    follower = far.follow()
    os.kill(far.at_work().keeper.pid, signal.SIGKILL)
    far.wait_for("ended together with its keeper")
    assert follower.wait(timeout=60) == 1  # its own keeper starts it again
    follower = far.follow()
    wait_until(lambda: far.said.read_text().count("hello") == 2, "another life")
    pid = far.at_work().pid

    follower.kill()
    follower.wait()
    follower = far.follow()
    far.wait_for("already running")
    far.cut_off(follower)
    far.cut.unlink()
    wait_until(lambda: far.said.read_text().count("already running") == 2, "another connection")
    assert far.at_work().pid == pid
    (far.there.path / "leave").write_text("70")
    assert follower.wait(timeout=60) == 70
    assert far.said.read_text().count("hello") == 2  # the log is copied once
    (far.there.path / "leave").write_text("0")
    assert far.follow().wait(timeout=60) == 0


def test_processes_on_a_host_that_was_cut_off_are_ended_later(
    far: Far, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    follower = far.follow()
    far.at_work()
    far.cut_off(follower)
    began = time.monotonic()
    follower.terminate()
    assert follower.wait(timeout=60) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 30
    assert "worker-1 may still be running there" in far.said.read_text()

    refused(r"beta can't be reached \(ssh: no route\)", near_end.end_remote, far.run, now=False)
    refused("mine may still be running on beta: end it with", hosts.check, far.plan, configure())
    here = Host("here", "10.77.0.1", 1, sys.executable, str(REPOSITORY))
    without_beta = replace(far.plan, processes=(), hosts=(here,))
    hosts.check(without_beta, configure())
    assert "on beta, which can't be reached: if this host returns, end the run" in caplog.text
    assert far.record()
    stuck = mock.Mock(closed=False, **{"close.return_value": (0, "")})
    stuck.receive.return_value = {"ended": [], "left": ["worker-1"]}
    with monkeypatch.context() as patch:
        patch.setattr(near_end, "Connection", lambda _: stuck)
        refused("worker-1 on beta did not end", near_end.end_remote, far.run, now=False)
    assert far.record(), "else `stop` would find nothing the next time"
    far.cut.unlink()
    refused("mine may still be running on beta: end it", hosts.check, without_beta, configure())
    assert near_end.end_remote(far.run, now=False) == ["worker-1"]
    assert far.record() is None
    assert near_end.end_remote(far.run, now=False) == []
    hosts.save_copy(far.run, None)
    assert not (far.run.path / "elsewhere").exists()


def test_a_remote_keeper_that_cannot_start_gives_the_reason(far: Far) -> None:
    (far.there.path / "logs").touch()  # where its log's directory should be
    assert far.follow().wait(timeout=60) == 70
    assert "beta can't start worker-1: keeper: cannot write" in far.said.read_text()


def test_a_remote_keeper_without_a_record_does_not_stay(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on a full disk there: no command would find it, nor its worker."""
    monkeypatch.setattr(process_records, "FIRST_RECORD_S", 2.0)
    pid, record, log = tmp_path / "pid", tmp_path / "record.json", str(tmp_path / "log")
    spec = KeeperSpec("worker-1", "worker", 1, "10.77.0.2:2222", (), {}, log, record=record)
    keeper = ["sh", "-c", f"echo $$ > {pid}; exec sleep 600"]
    launcher: Any = mock.Mock()
    trouble = far_end.attach({"keeper": keeper, "unless_ended": False}, spec, launcher)
    assert "wrote no record within 2 s, and is ended" in not_none(trouble)
    assert is_gone(int(pid.read_text()))


def test_a_worker_on_a_host_that_was_cut_off_is_removed_later(far: Far) -> None:
    rundir.create(far.run.path, configure(workers=2), None, resume=False, label="mine")
    follower = far.follow()
    far.at_work()
    far.cut_off(follower)
    restart, remove = ((verb, "worker-1", "--run", str(far.run.path)) for verb in VERBS)
    local = far.run.record("worker-1")
    keeper = not_none(process_records.identify(follower.pid))  # stands for the keeper here
    process_records.write_json(local, process_record("worker-1", "running", None, keeper))
    line = ended(2, launch_cluster.main, *restart).line
    assert "beta can't be reached: give `restart worker-1` again later" in line
    follower.terminate()
    follower.wait(timeout=60)
    process_records.write_json(local, process_record("worker-1", "stopped", None, dead()))
    line = ended(2, launch_cluster.main, *remove).line
    assert "worker-1 may still be running there; give `remove worker-1` again later" in line
    assert "worker-1 may still be running there" in " ".join(status.read(far.run).warnings)
    far.cut.unlink()
    chief = replace(far.plan.processes[1], name="worker-0", task=0, host="here")
    replace(far.plan, processes=(*far.plan.processes, chief)).save(far.run)
    with rundir.hold(far.run.path):
        line = ended(2, launch_cluster.main, "add", "--run", str(far.run.path)).line
    assert "worker-1 may still be running on beta: give `remove worker-1` first" in line
    assert ended(0, launch_cluster.main, *remove).out == "worker-1 has left\n"
    assert far.record() is None
    found = status.read(far.run)
    assert {p.name: p.host for p in found.processes}["worker-1"] == "beta"
    assert "still be running" not in " ".join(found.warnings)
    assert "worker-1 is not running" in ended(2, launch_cluster.main, *remove).line


def test_all_spellings_of_a_hosts_address_are_its_own(monkeypatch: Patch) -> None:
    assert "127.0.0.1" in hosts._spellings("localhost")
    assert "fd00::3" in hosts._spellings("fd00:0::3")
    monkeypatch.setattr("socket.getaddrinfo", mock.Mock(side_effect=socket.gaierror))
    assert hosts._spellings("no-such-host") == {"no-such-host"}


def test_an_editors_lock_a_broken_link_and_what_pip_has_built_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "build" / "lib").mkdir(parents=True)
    for name in ("model.py", "build/lib/model.py"):
        (tmp_path / name).touch()
    (tmp_path / "old.py").symlink_to("gone.py")
    (tmp_path / ".#model.py").symlink_to("me@host.1:2")
    assert list(probe.code_of(str(tmp_path))) == ["model.py"]


def test_metrics_that_a_full_disk_did_not_take_are_copied_later(far: Far) -> None:
    follower = far.follow()
    far.at_work()
    here, there = far.run.metrics("worker-1"), far.there.metrics("worker-1")
    wait_until(lambda: here.exists() and here.stat().st_size, "metrics here")
    limits = resource.prlimit(follower.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(follower.pid, resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a full disk
    before = there.stat().st_size
    wait_until(lambda: there.stat().st_size > before + 300, "more metrics there")
    assert here.stat().st_size <= before
    resource.prlimit(follower.pid, resource.RLIMIT_FSIZE, limits)
    wait_until(lambda: here.stat().st_size > before + 600, "the same here")
    (far.there.path / "leave").write_text("0")
    assert follower.wait(timeout=60) == 0
    assert here.read_text() == there.read_text()
    assert "no connection" not in far.said.read_text()


def test_half_a_line_from_a_host_or_no_ssh_is_named(far: Far, monkeypatch: Patch) -> None:
    ssh = far.cut.with_name("ssh")
    ssh.write_text("#!/bin/sh\nprintf '{\"half'\nexec sleep 60\n")
    monkeypatch.setattr(hosts, "FACTS_TIMEOUT_S", 1.0)
    began = time.monotonic()
    (answer,) = hosts.ask(far.plan)
    assert time.monotonic() - began < 30.0
    assert answer.trouble == "no answer within 1 s"
    ssh.unlink()
    monkeypatch.setenv("PATH", str(ssh.parent))
    refused("--hosts: there is no ssh here: install it", hosts.ask, far.plan)


def test_a_login_shell_may_print_before_the_first_message(far: Far) -> None:
    title = "printf '\\033]0;beta {1}\\a'; "
    far.cut.with_name("ssh").write_text(SSH.replace("exec sh", title + "exec sh"))
    (answer,) = hosts.ask(far.plan)
    assert (answer.trouble, bool(answer.facts)) == ("", True)


def test_lines_that_hold_no_message_are_passed_on() -> None:
    source, sink = os.pipe()
    channel, others = far_end.Channel(source, sink), list[bytes]()
    channel.on_other = others.append
    banner = [b"load {1}", b"options: {}", b'use {"host"}', b"\xff {", b'["{"]']
    channel.send({"a": {"b": 1}}, before=b"\n".join([*banner, b"$ "]))
    assert channel.receive(10.0) == {"a": {"b": 1}}
    assert others == banner
    os.close(source)
    os.close(sink)


def test_pings_keep_a_connection_and_without_them_it_ends(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(far_end, "PING_TIMEOUT_S", 2.0)
    monkeypatch.setattr(process_records, "is_kept", lambda _: True)
    record, log = tmp_path / "runs/mine/processes/worker-1.json", str(tmp_path / "log")
    spec = KeeperSpec("worker-1", "worker", 1, "10.77.0.2:2222", (), {}, log, record=record)
    received, pings = os.pipe()
    with Path(os.devnull).open("wb") as nobody:
        arguments: Any = {"places": {}}, spec, far_end.Channel(received, nobody.fileno())
        far = threading.Thread(target=far_end.report, args=arguments, daemon=True)
        far.start()
        for _ in range(30):
            time.sleep(0.1)
            far_end.Channel(received, pings).send({})
        assert far.is_alive()
        far.join(10.0)
        assert not far.is_alive()
    os.close(received)
    os.close(pings)


def test_a_probe_imports_no_module_of_the_current_folder(here: Path) -> None:
    for name in ("json", "select", "types"):
        (here / f"{name}.py").write_text("raise SystemExit('imported')\n")
    source = Path(probe.__file__).read_text()
    argv = [sys.executable, "-c", hosts._LOAD, str(len(source.encode()))]
    assert "imported" not in call(*argv, input=source).stderr
