"""What should start again does, and what hangs or grows is ended first."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from a3c.keeper.spawn import HeartbeatMonitor
from a3c.process import process_records
from a3c.process.heartbeat import VARIABLE
from tests.keeper.kept import BEAT, COUNT, DEAF, PYTHON, QUICK, Start


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
    kept = start("exit 75", limits=dataclasses.replace(QUICK, max_restarts=2))
    record = kept.ended()
    assert kept.process.returncode == 75
    assert (record.state, record.restarts) == ("failed", 2)


def test_retries_after_a_heartbeat_are_not_limited(start: Start) -> None:
    script = f"{COUNT}; {BEAT}; [ $n -ge 4 ] && exit 0; while :; do sleep 0.05; done"
    kept = start(script, limits=dataclasses.replace(QUICK, max_restarts=1))
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
    assert process_records.live_state(after) == "running"
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
    script = f'touch -d 1999-01-01 "${VARIABLE}"; exec sleep 1000'
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
        "exec sleep 1000",
        start_timeout_s=0.3,
        limits=dataclasses.replace(QUICK, max_restarts=1),
        grace_s=5.0,
    )
    record = kept.ended()
    assert (record.state, record.restarts) == ("failed", 1)
    assert record.last_exit is not None
    assert record.last_exit.reason == "start-timeout"
    assert kept.process.returncode == 128 + signal.SIGTERM


def test_time_in_which_the_keeper_was_stopped_is_no_silence(tmp_path: Path) -> None:
    monitor = HeartbeatMonitor(tmp_path / "heartbeat")
    (tmp_path / "heartbeat").touch()
    assert monitor.check(0.25)
    assert not monitor.check(1000.0)
    assert monitor.silence_s <= 1.0
    assert not monitor.check(0.25)
    assert monitor.silence_s == 1.25
    os.utime(tmp_path / "heartbeat", (5.0, 5.0))
    assert not monitor.check(0.25)
    assert (monitor.beat, monitor.silence_s) == (True, 0.0)


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
