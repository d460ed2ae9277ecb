"""The keeper with real processes: what should start again does, and nothing is left over."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from a3c import processes
from a3c.keeper import HEARTBEAT_VARIABLE, KeeperSpec, command, parse
from a3c.keeping.child import Pulse
from a3c.keeping.restarts import Limits
from a3c.keeping.spec import child_environment
from a3c.processes import ProcessRecord

ROOT = Path(__file__).parent.parent
PYTHON = [sys.executable, "-I", "-S", "-c"]
QUICK = Limits(first_delay_s=0.01, longest_delay_s=0.05)
BEAT = f'touch "${HEARTBEAT_VARIABLE}"'
DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
# Counts its lives in the file `lives`, in $n.
COUNT = "echo x >> lives; n=$(wc -l < lives)"

Start = Callable[..., "Kept"]


def wait_for(condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """What `condition` gives once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclasses.dataclass
class Kept:
    """A keeper that runs, and what there is to see of it."""

    process: subprocess.Popen[str]
    spec: KeeperSpec

    def record(self) -> ProcessRecord | None:
        return processes.read_record(self.spec.record)

    def wait_record(self, condition: Callable[[ProcessRecord], Any]) -> ProcessRecord:
        def look() -> ProcessRecord | None:
            record = self.record()
            return record if record is not None and condition(record) else None

        found = wait_for(look)
        assert isinstance(found, ProcessRecord)
        return found

    def child(self) -> int:
        """The pid of the child, once there is one."""
        pid = self.wait_record(lambda record: record.pid).pid
        assert pid is not None
        return pid

    def file(self, name: str) -> Path:
        """A file where the child works."""
        assert self.spec.cwd is not None
        return self.spec.cwd / name

    def log(self) -> str:
        return self.spec.log.read_text() if self.spec.log.exists() else ""

    def wait_log(self, text: str) -> None:
        wait_for(lambda: text in self.log())

    def guardian(self) -> int:
        """The keeper's other child."""
        child = self.child()
        pids = [p.pid for p in psutil.Process(self.process.pid).children() if p.pid != child]
        assert len(pids) == 1
        return pids[0]

    def ended(self) -> ProcessRecord:
        """The record after the keeper left by itself or was asked to."""
        self.process.wait(timeout=20)
        record = self.record()
        assert record is not None
        return record


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a keeper of a shell script, or of an argv, and leave nothing behind."""
    kept: list[Kept] = []

    def begin(what: str | list[str], popen: dict[str, Any] | None = None, **changes: Any) -> Kept:
        argv = ["sh", "-c", what] if isinstance(what, str) else what
        values: dict[str, Any] = {
            "record": tmp_path / "run" / "processes" / "worker-0.json",
            "name": "worker-0",
            "role": "worker",
            "log": tmp_path / "run" / "logs" / "worker-0.log",
            "argv": tuple(argv),
            "address": "127.0.0.1:1234",
            "heartbeat": tmp_path / "run" / "processes" / "worker-0.heartbeat",
            "limits": QUICK,
            "cwd": tmp_path,
        }
        spec = KeeperSpec(**{**values, **changes})
        options: dict[str, Any] = {"cwd": ROOT, "text": True, "start_new_session": True}
        process = subprocess.Popen(command(spec), **{**options, **(popen or {})})
        kept.append(Kept(process, spec))
        return kept[-1]

    yield begin
    for one in kept:
        with one.process as process:
            process.kill()
        for pipe in (one.process.stdout, one.process.stderr):
            if pipe is not None:
                pipe.close()


def test_a_process_that_asks_for_another_try_gets_it_until_it_is_done(start: Start) -> None:
    kept = start(f"{COUNT}; echo life $n; [ $n -ge 3 ] || exit 75")
    record = kept.ended()
    assert kept.process.returncode == 0
    assert (record.state, record.restarts, record.pid) == ("done", 2, None)
    assert re.findall(r"^life \d", kept.log(), re.M) == ["life 1", "life 2", "life 3"]
    delays = [float(text) for text in re.findall(r"starts again in (\S+) s", kept.log())]
    assert delays == [0.01, 0.02]


@pytest.mark.parametrize("code", [2, 70, 3])
def test_a_fault_that_a_restart_cannot_mend_ends_it(start: Start, code: int) -> None:
    kept = start(f"echo why >&2; exit {code}")
    record = kept.ended()
    assert kept.process.returncode == code
    assert (record.state, record.restarts) == ("failed", 0)
    assert record.last_exit is not None
    assert (record.last_exit.code, record.last_exit.signal) == (code, None)
    assert record.first_error is not None
    assert "why" in record.first_error


def test_a_crash_loop_fails_with_its_first_error(start: Start) -> None:
    script = f"{BEAT}; {COUNT}; echo error $n; exit 1"
    kept = start(script)
    record = kept.ended()
    assert kept.process.returncode == 1
    assert (record.state, record.restarts) == ("failed", 4)
    assert record.first_error is not None
    assert "error 1" in record.first_error
    assert "error 5" in record.output_tail
    assert "error 4" not in record.output_tail


def test_a_crash_loop_after_another_fault_fails_with_its_own_first_error(start: Start) -> None:
    script = f"{BEAT}; {COUNT}; echo error $n; [ $n -gt 1 ] || kill -KILL $$; exit 1"
    record = start(script).ended()
    assert record.state == "failed"
    assert record.first_error is not None
    assert "error 2" in record.first_error


def test_retries_without_a_heartbeat_are_limited(start: Start) -> None:
    kept = start("exit 75", limits=QUICK._replace(max_restarts=2))
    record = kept.ended()
    assert kept.process.returncode == 75
    assert (record.state, record.restarts) == ("failed", 2)


def test_retries_after_a_heartbeat_are_not_limited(start: Start) -> None:
    script = f"{COUNT}; {BEAT}; [ $n -ge 4 ] && exit 0; while :; do sleep 0.05; done"
    kept = start(script, limits=QUICK._replace(max_restarts=1))
    for restarts in range(3):
        running = kept.wait_record(lambda r: r.state == "running" and r.restarts == restarts)  # noqa: B023
        assert running.pid is not None
        os.kill(running.pid, signal.SIGKILL)
    assert kept.ended().state == "done"


def test_a_killed_process_comes_back_with_another_pid(start: Start) -> None:
    kept = start(f"{BEAT}; exec sleep 1000")
    before = kept.wait_record(lambda record: record.state == "running")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    after = kept.wait_record(lambda record: record.restarts == 1 and record.state == "running")
    assert after.pid not in (None, before.pid)
    assert processes.live_state(after) == "running"
    assert after.last_exit is not None
    assert (after.last_exit.code, after.last_exit.signal) == (None, "SIGKILL")
    assert "ended by SIGKILL" in kept.log()


def test_the_state_is_starting_until_the_first_heartbeat(start: Start) -> None:
    kept = start(f"until [ -e go ]; do sleep 0.01; done; {BEAT}; exec sleep 1000")
    assert kept.wait_record(lambda record: record.pid).state == "starting"
    kept.file("go").touch()
    kept.wait_record(lambda record: record.state == "running")


def test_a_process_that_hangs_is_started_again(start: Start) -> None:
    script = f"{COUNT}; [ $n -ge 2 ] && exit 0; {BEAT}; {DEAF}"
    kept = start(script, heartbeat_timeout_s=0.3, grace_s=0.1)
    kept.wait_record(lambda record: record.last_exit)
    record = kept.ended()
    assert (record.state, record.restarts) == ("done", 1)
    assert "no heartbeat for 0.3 s" in kept.log()
    assert "did not end, and is killed" in kept.log()
    assert "ended by SIGKILL" in kept.log()


def test_a_process_that_beats_is_left_alone(start: Start) -> None:
    script = f"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do {BEAT}; sleep 0.1; done"
    record = start(script, heartbeat_timeout_s=1.0).ended()
    assert (record.state, record.restarts) == ("done", 0)


def test_a_heartbeat_from_another_time_is_a_heartbeat(start: Start) -> None:
    script = f'touch -d 1999-01-01 "${HEARTBEAT_VARIABLE}"; exec sleep 1000'
    start(script).wait_record(lambda record: record.state == "running")


def test_a_stopped_process_is_ended_and_started_again(start: Start) -> None:
    kept = start(f"{COUNT}; [ $n -ge 2 ] || {{ {BEAT}; kill -STOP $$; }}", heartbeat_timeout_s=0.3)
    record = kept.ended()
    assert (record.state, record.restarts) == ("done", 1)
    assert "ended by SIGTERM" in kept.log()


def test_a_stopped_process_that_is_deaf_too_is_killed(start: Start) -> None:
    stop = f"{BEAT}; while :; do kill -STOP $$; done"
    script = f"trap '' TERM; {COUNT}; [ $n -ge 2 ] || {{ {stop}; }}"
    kept = start(script, heartbeat_timeout_s=0.3, grace_s=0.1)
    assert kept.ended().state == "done"
    assert "ended by SIGKILL" in kept.log()


def test_a_process_that_never_beats_is_ended_after_the_start_timeout(start: Start) -> None:
    kept = start(
        "exec sleep 1000", start_timeout_s=0.3, limits=QUICK._replace(max_restarts=1), grace_s=5.0
    )
    record = kept.ended()
    assert (record.state, record.restarts) == ("failed", 1)
    assert record.last_exit is not None
    assert record.last_exit.reason == "start-timeout"
    assert kept.process.returncode == 128 + signal.SIGTERM


def test_time_in_which_the_keeper_was_stopped_is_no_silence(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "heartbeat")
    (tmp_path / "heartbeat").touch()
    assert pulse.check(0.25)
    assert not pulse.check(1000.0)
    assert pulse.silence_s <= 1.0
    assert not pulse.check(0.25)
    assert pulse.silence_s == 1.25
    os.utime(tmp_path / "heartbeat", (5.0, 5.0))
    assert not pulse.check(0.25)
    assert (pulse.beat, pulse.silence_s) == (True, 0.0)


LEAK = shlex.join([*PYTHON, "import time; b = b'x' * 60_000_000; time.sleep(1000)"])


def test_a_process_that_takes_too_much_memory_is_ended_and_started_again(start: Start) -> None:
    kept = start(f"{COUNT}; [ $n -ge 2 ] && exit 0; {BEAT}; exec {LEAK}", max_memory_mb=50.0)
    record = kept.ended()
    assert (record.state, record.restarts) == ("done", 1)
    assert re.search(r"worker-0 takes \d+ MB of memory, more than 50, and is ended", kept.log())


def test_a_process_that_never_has_enough_memory_fails(start: Start) -> None:
    kept = start(f"{BEAT}; exec sleep 1000", max_memory_mb=0.001)
    record = kept.ended()
    assert (record.state, record.restarts) == ("failed", 4)
    assert record.last_exit is not None
    assert record.last_exit.reason == "memory"
    assert "MB of memory, more than 0.001" in (record.first_error or ("",))[-1]


def test_without_a_heartbeat_file_silence_is_no_sign(start: Start) -> None:
    kept = start("sleep 0.6", heartbeat=None, start_timeout_s=0.1, heartbeat_timeout_s=0.1)
    kept.wait_record(lambda record: record.state == "running")
    assert kept.ended().restarts == 0


def test_stopping_lets_the_process_end_in_order(start: Start) -> None:
    kept = start(f"trap 'echo last words; exit 0' TERM; {BEAT}; while :; do sleep 0.02; done")
    running = kept.wait_record(lambda record: record.state == "running")
    assert processes.terminate(running)
    record = kept.ended()
    assert kept.process.returncode == 0
    assert record.state == "stopped"
    assert record.last_exit is not None
    assert (record.last_exit.code, record.last_exit.reason) == (0, "stop")
    assert "last words" in kept.log()


def test_a_process_that_ignores_term_is_killed_after_the_grace_time(start: Start) -> None:
    kept = start(DEAF, grace_s=0.1)
    kept.wait_log("deaf")
    kept.process.terminate()
    record = kept.ended()
    assert kept.process.returncode == 128 + signal.SIGKILL
    assert record.state == "stopped"


@pytest.mark.parametrize("signals", [[signal.SIGTERM, signal.SIGINT], [signal.SIGQUIT]])
def test_a_second_signal_kills_at_once(start: Start, signals: list[signal.Signals]) -> None:
    kept = start(DEAF, grace_s=1000.0)
    kept.wait_log("deaf")
    for signum in signals:
        kept.process.send_signal(signum)
    assert kept.ended().state == "stopped"
    assert kept.process.returncode == 128 + signal.SIGKILL


def test_a_closed_terminal_signals_twice_and_still_lets_end_in_order(start: Start) -> None:
    script = (
        "trap 'echo asked; until [ -e go ]; do sleep 0.01; done; exit 0' TERM;"
        "echo ready; while :; do sleep 0.02; done"
    )
    kept = start(script)
    kept.wait_log("ready")
    kept.process.send_signal(signal.SIGHUP)
    kept.wait_log("\nasked")
    for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        kept.process.send_signal(signum)
    kept.file("go").touch()
    record = kept.ended()
    assert kept.process.returncode == 0
    assert record.last_exit is not None
    assert (record.state, record.last_exit.reason) == ("stopped", "hangup")


def test_under_nohup_a_hangup_is_ignored(start: Start) -> None:
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    kept = start("echo ready; until [ -e go ]; do sleep 0.01; done", {"preexec_fn": ignore_hangup})
    kept.wait_log("ready")
    kept.process.send_signal(signal.SIGHUP)
    kept.file("go").touch()
    assert kept.ended().state == "done"


def test_stopping_between_two_lives_ends_at_once(start: Start) -> None:
    kept = start("exit 75", limits=Limits(first_delay_s=1000.0, longest_delay_s=1000.0))
    kept.wait_record(lambda record: record.state == "restarting")
    kept.process.terminate()
    assert kept.ended().state == "stopped"
    assert kept.process.returncode == 75


def test_a_restart_that_was_asked_for_comes_at_once_and_counts_as_no_failure(start: Start) -> None:
    limits = Limits(max_restarts=0, first_delay_s=1000.0, longest_delay_s=1000.0)
    kept = start(f"{BEAT}; exec sleep 1000", limits=limits)
    for restarts in range(2):
        running = kept.wait_record(lambda r: r.state == "running" and r.restarts == restarts)  # noqa: B023
        assert processes.request_restart(running)
    after = kept.wait_record(lambda record: record.state == "running" and record.restarts == 2)
    assert after.last_exit is not None
    assert (after.last_exit.reason, after.first_error) == ("restart", None)


def test_a_restart_that_was_asked_for_cuts_the_wait_short(start: Start) -> None:
    limits = Limits(first_delay_s=1000.0, longest_delay_s=1000.0)
    kept = start(f"{COUNT}; [ $n -ge 2 ] || exit 75", limits=limits)
    assert processes.request_restart(kept.wait_record(lambda r: r.state == "restarting"))
    assert kept.ended().state == "done"


def test_what_a_process_leaves_in_its_group_is_killed_with_it(start: Start) -> None:
    kept = start("sh -c 'trap \"\" TERM HUP; echo $$ > left; while :; do sleep 0.05; done' & "
                 "until [ -s left ]; do sleep 0.01; done")  # fmt: skip
    assert kept.ended().state == "done"
    left = int(kept.file("left").read_text())
    wait_for(lambda: is_gone(left))


def test_what_left_the_group_is_killed_too(start: Start) -> None:
    daemon = shlex.join([*PYTHON, "import os, time; os.setsid(); open('left','w').write(str(os.getpid())); time.sleep(1000)"])  # fmt: skip  # noqa: E501
    kept = start(f"({daemon} &) ; until [ -s left ]; do sleep 0.01; done")
    assert kept.ended().state == "done"
    left = int(kept.file("left").read_text())
    assert is_gone(left)


def test_killing_the_keeper_takes_the_process_and_its_group_along(start: Start) -> None:
    kept = start(f"sleep 1000 & echo $! > left; {DEAF}")
    kept.wait_log("deaf")
    left = int(kept.file("left").read_text())
    pids = [kept.child(), kept.guardian(), left]
    kept.process.kill()
    wait_for(lambda: all(is_gone(pid) for pid in pids))
    record = kept.record()
    assert record is not None
    assert (record.state, processes.live_state(record)) == ("starting", "dead")


def test_the_death_signal_alone_ends_the_process_of_a_killed_keeper(start: Start) -> None:
    kept = start(DEAF)
    kept.wait_log("deaf")
    child = kept.child()
    os.kill(kept.guardian(), signal.SIGKILL)
    kept.process.kill()
    wait_for(lambda: is_gone(child))


def test_the_guardian_alone_ends_the_process_of_a_killed_keeper(start: Start) -> None:
    code = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); print('deaf', flush=True); time.sleep(1000)"  # noqa: E501
    kept = start([sys.executable, "-I", "-c", code])
    kept.wait_log("deaf")
    child = kept.child()
    kept.process.kill()
    wait_for(lambda: is_gone(child))


def test_the_keeper_ends_with_its_parent(tmp_path: Path) -> None:
    spec = KeeperSpec(
        record=tmp_path / "w.json",
        name="w",
        role="worker",
        log=tmp_path / "w.log",
        argv=("sh", "-c", "trap 'echo last words; exit 0' TERM; while :; do sleep 0.02; done"),
        parent=0,
    )
    launcher = [*PYTHON, f"import subprocess; subprocess.run({command(spec)!r})"]
    with subprocess.Popen(launcher, cwd=ROOT, start_new_session=True) as parent:
        try:
            record = wait_for(lambda: processes.read_record(spec.record))
            running = wait_for(lambda: (r := processes.read_record(spec.record)) and r.pid and r)
        finally:
            parent.kill()
    wait_for(lambda: is_gone(record.keeper.pid) and is_gone(running.pid))
    after = processes.read_record(spec.record)
    assert after is not None
    assert after.last_exit is not None
    assert (after.state, after.last_exit.reason) == ("stopped", "parent")
    assert "last words" in spec.log.read_text()


def test_a_parent_that_is_gone_already_ends_the_keeper(start: Start) -> None:
    kept = start("exec sleep 1000", parent=2**30)
    assert kept.ended().state == "stopped"


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
    assert record["log"] == str(kept.spec.log)
    assert "hunter2" not in text
    assert "SECRET_TOKEN" not in text


def test_files_are_private(start: Start) -> None:
    kept = start("true")
    kept.ended()
    run = kept.spec.record.parent.parent
    assert {path.stat().st_mode & 0o777 for path in run.rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (run, *run.iterdir())} == {0o700}
    assert sorted(path.name for path in kept.spec.record.parent.iterdir()) == [
        "worker-0.heartbeat",
        "worker-0.json",
    ]


def test_training_goes_on_while_the_log_has_no_room(start: Start) -> None:
    kept = start(
        "for i in 1 2 3; do echo line $i; done; echo done > done",
        {"stdout": subprocess.PIPE},
        log=Path("/dev/full"),
        echo=True,
    )
    output, _ = kept.process.communicate(timeout=20)
    record = kept.record()
    assert record is not None
    assert record.state == "done"
    assert output.count("No space left on device") == 1
    assert "line 3" in output


def test_record_and_log_go_on_when_a_full_disk_has_room_again(start: Start) -> None:
    def allow_no_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    script = "echo early; until [ -e go ]; do sleep 0.01; done; echo late; exec sleep 1000"
    kept = start(script, {"preexec_fn": allow_no_files, "stdout": subprocess.PIPE}, echo=True)
    assert kept.process.stdout is not None
    assert any("early" in line for line in iter(kept.process.stdout.readline, ""))
    assert kept.record() is None
    assert kept.log() == ""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(kept.process.pid, resource.RLIMIT_FSIZE, unlimited)
    kept.file("go").touch()
    kept.wait_record(lambda record: "late" in record.output_tail)
    assert re.match(r"\nkeeper: \d+ bytes of output were lost here\n", kept.log())
    assert kept.log().endswith("\nlate\n")


def test_a_reader_that_never_reads_stops_nothing(start: Start) -> None:
    kept = start("head -c 1000000 /dev/zero", {"stdout": subprocess.PIPE}, echo=True)
    assert kept.ended().state == "done"
    assert kept.spec.log.stat().st_size > 1_000_000


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
    assert [line for line in output.splitlines() if "keeper:" not in line] == [
        "out",
        "err",
        "unfinished",
    ]


def test_proxies_are_dropped_and_the_rest_of_the_environment_passes(start: Start) -> None:
    environment = {
        **os.environ,
        "http_proxy": "http://dead.invalid:1",
        "HTTPS_PROXY": "http://dead.invalid:1",
        HEARTBEAT_VARIABLE: "of an outer keeper",
        "all_proxy": "x",
        "GRPC_PROXY": "x",
        "no_proxy": "localhost",
        "ODD": "tab\tquote'\"\nline",
    }
    code = (
        "import json, os, sys;print(json.dumps([dict(os.environ), sys.argv[1:], sys.stdin.read()]))"
    )
    arguments = ["a b", "--", "", "ü", "$HOME"]
    kept = start([*PYTHON, code, *arguments], {"env": environment}, env=(("EXTRA", "a=b"),))
    kept.ended()
    seen, argv, stdin = json.loads(next(t for t in kept.log().splitlines() if t.startswith("[")))
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "GRPC_PROXY"):
        del environment[name]
    expected = {**environment, "EXTRA": "a=b", HEARTBEAT_VARIABLE: str(kept.spec.heartbeat)}
    assert {name: seen.get(name) for name in expected} == expected
    assert not {name for name in seen if name.lower().endswith("_proxy")} - {"no_proxy"}
    assert (argv, stdin) == (arguments, "")


def test_the_heartbeat_of_an_outer_keeper_is_not_passed_on() -> None:
    spec = KeeperSpec(Path("r"), "n", "r", Path("l"), ("true",))
    assert child_environment({HEARTBEAT_VARIABLE: "outer", "A": "b"}, spec) == {"A": "b"}


def test_the_process_starts_with_plain_signals_in_a_session_of_its_own(start: Start) -> None:
    code = (
        "import os, signal; p = os.getpid();"
        "status = open('/proc/self/status').read().splitlines();"
        "print(os.getsid(0) == os.getpgrp() == p,"
        " *[s.split()[1] for s in status if s.startswith(('SigBlk', 'SigCgt'))],"
        " sorted(map(int, os.listdir('/proc/self/fd')))[:3])"
    )
    kept = start([*PYTHON, code])
    kept.ended()
    _, line, _ = kept.log().splitlines()
    session, blocked, _, *descriptors = line.split()
    assert (session, int(blocked, 16), descriptors) == ("True", 0, ["[0,", "1,", "2]"])


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
    assert record.first_error is not None
    assert "cannot start '/no/such/program'" in record.first_error[-1]
    assert "No such file or directory" in record.first_error[-1]


def test_a_second_keeper_of_the_same_record_is_refused(start: Start) -> None:
    first = start("exec sleep 1000")
    pid = first.child()
    second = start("exec sleep 1000", {"stderr": subprocess.PIPE})
    _, error = second.process.communicate(timeout=20)
    assert second.process.returncode == 2
    assert f"kept already by pid {first.process.pid}" in error
    assert first.child() == pid


def test_a_record_that_outlived_its_keeper_is_taken_over(start: Start) -> None:
    first = start("exec sleep 1000")
    first.child()
    first.process.kill()
    first.process.wait()
    assert start("true").ended().state == "done"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["--grace", "-1"], "'-1': give a number of 0.0 or more"),
        (["--grace", "nan"], "'nan'"),
        (["--max-restarts", "many"], "'many'"),
        (["--env", "NOVALUE"], "'NOVALUE': give NAME=VALUE"),
        (["--unknown"], "--unknown"),
    ],
)
def test_bad_usage_is_one_line_and_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["--record=r", "--name=n", "--role=r", "--log=l"] if arguments else []
    with pytest.raises(SystemExit) as exit_info:
        parse([*needed, *arguments, "--", "true"])
    error = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_keeper_without_a_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--record=r", "--name=n", "--role=r", "--log=l"])
    assert "put it after --" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made_is_bad_usage(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = start("true", {"stderr": subprocess.PIPE}, log=tmp_path / "file" / "logs" / "log")
    _, error = kept.process.communicate(timeout=20)
    assert kept.process.returncode == 2
    assert error.startswith("keeper: cannot make ")
    assert error.count("\n") == 1


def test_a_spec_survives_its_command_line() -> None:
    spec = KeeperSpec(
        record=Path("a b/--x.json"),
        name="-odd name:0",
        role="worker",
        log=Path("l"),
        argv=("python", "--", "-c", "x y"),
        task=3,
        address="[::1]:1",
        heartbeat=Path("h"),
        heartbeat_timeout_s=1.5,
        start_timeout_s=0.0,
        grace_s=2.0,
        max_memory_mb=6.5,
        limits=Limits(1, 2, 3.0, 4.0, 5.0),
        restarts=6,
        echo=True,
        parent=0,
        env=(("A", "b=c"), ("B", "")),
        cwd=Path("/"),
    )
    assert parse(command(spec)[3:]) == spec
    plain = KeeperSpec(Path("r"), "n", "r", Path("l"), ("true",))
    assert parse(command(plain)[3:]) == plain


def test_keeper_and_guardian_stay_below_20_mb(start: Start) -> None:
    kept = start(f"head -c 1000000 /dev/zero; {BEAT}; exec sleep 1000")
    kept.wait_record(lambda record: record.state == "running")
    keeper, guardian = psutil.Process(kept.process.pid), psutil.Process(kept.guardian())
    assert keeper.memory_info().rss < 20e6
    assert keeper.memory_full_info().pss + guardian.memory_full_info().pss < 20e6


def test_the_keeper_imports_nothing_heavy() -> None:
    code = "import a3c.keeper, sys; print([m for m in %r if m in sys.modules])"
    heavy = [
        "tensorflow",
        "numpy",
        "rich",
        "libtmux",
        "psutil",
        "gymnasium",
        "subprocess",
        "logging",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code % heavy], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_terminal_that_is_closed_ends_the_run_in_order(start: Start) -> None:
    ours, theirs = os.openpty()
    script = "trap 'echo last words; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    kept = start(script, {"stdout": theirs}, echo=True)
    os.close(theirs)
    output = b""
    while b"ready" not in output:
        output += os.read(ours, 4096)
    os.close(ours)
    kept.process.send_signal(signal.SIGHUP)
    assert kept.ended().state == "stopped"
    assert "last words" in kept.log()
