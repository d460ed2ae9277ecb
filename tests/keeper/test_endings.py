"""Which ended processes a keeper starts again, which it ends, and what ends together with it."""

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import Any
from unittest import mock
from unittest.mock import ANY

import psutil
import pytest

from a3c.keeper import spawn
from a3c.keeper.restarts import ExitKind, Limits, RestartPolicy, classify_exit
from a3c.process import process_records
from a3c.process.heartbeat import VARIABLE
from a3c.process.process_records import LastExit
from tests import Patch, not_none
from tests.keeper.conftest import BEAT, COUNT, DEAF, PYTHON, QUICK, Start, wait_for
from tests.runs import is_gone

KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
TWICE = f"{COUNT}; [ $n -ge 2 ] && exit 0"
STOPS = f"{BEAT}; while :; do kill -STOP $$; done"
LEAK = shlex.join([*PYTHON, "import time; b = b'x' * 60_000_000; time.sleep(1000)"])
FEW = dataclasses.replace(QUICK, max_restarts=1)
SILENT = {"start_timeout_s": 0.3, "limits": FEW, "grace_s": 5.0}
LARGE = {"max_memory_mb": 0.001, "heartbeat_timeout_s": 0.0, "grace_s": 5.0}
LEAKS = {"max_memory_mb": 50.0, "heartbeat_timeout_s": 0.0}
LEAKED = r"worker-0 takes \d+ MB of memory, more than 50, and is ended"


@pytest.mark.parametrize(
    ("script", "spec", "returncode", "restarts", "said"),
    [
        (f"{COUNT}; [ $n -ge 3 ] || exit 75", {}, 0, 2, r"again in 0.01 s(.|\n)*again in 0.02 s"),
        ("echo why >&2; exit 2", {}, 2, 0, "exited with code 2"),
        (f"{TWICE}; exit 143", {}, 0, 1, "exited with code 143; starts again"),
        ("exit 75", {"limits": FEW}, 75, 1, "exited with code 75"),
        # It hangs, it is stopped, and it is stopped and ignores TERM.
        (f"{TWICE}; {BEAT}; {DEAF}", {}, 0, 1, r"no heartbeat for 0.3 s(.|\n)*did not end"),
        (f"{TWICE}; {BEAT}; kill -STOP $$", {}, 0, 1, "ended by SIGTERM"),
        (f"trap '' TERM; {TWICE}; {STOPS}", {}, 0, 1, "ended by SIGKILL"),
        # It never gives a heartbeat, or gives one in time, or has no file for it.
        ("exec sleep 1000", SILENT, TERMINATED, 1, "no heartbeat for 0.3 s"),
        (f"for i in $(seq 14); do {BEAT}; sleep 0.1; done", {"heartbeat_timeout_s": 1.0}, 0, 0, ""),
        ("sleep 0.6", {"heartbeat": None, "start_timeout_s": 0.1}, 0, 0, ""),
        # It takes too much memory once, and always.
        (f"{TWICE}; {BEAT}; exec {LEAK}", LEAKS, 0, 1, LEAKED),
        (f"{BEAT}; exec sleep 1000", LARGE, TERMINATED, 4, "MB of memory, more than 0.001"),
    ],
)
def test_a_process_is_started_again_as_its_end_asks_for(
    start: Start, script: str, spec: dict[str, Any], returncode: int, restarts: int, said: str
) -> None:
    kept = start(script, **{"heartbeat_timeout_s": 0.3, "grace_s": 0.1, **spec})
    record = kept.ended()
    assert (kept.process.returncode, record.restarts) == (returncode, restarts)
    assert (record.state, record.pid) == ("failed" if returncode else "done", None)
    assert re.search(said, kept.log())
    if returncode:
        assert not_none(record.last_exit).code == (None if returncode > 128 else returncode)


@pytest.mark.parametrize(
    ("script", "first"),
    [
        (f"{BEAT}; {COUNT}; echo error $n; exit 1", "error 1"),
        (f"{BEAT}; {COUNT}; echo error $n; [ $n -gt 1 ] || kill -KILL $$; exit 1", "error 2"),
    ],
)
def test_a_crash_loop_fails_with_its_own_first_error(start: Start, script: str, first: str) -> None:
    kept = start(script)
    record = kept.ended()
    assert (record.state, kept.process.returncode) == ("failed", 1)
    assert first in (record.first_error or ())
    assert f"error {record.restarts + 1}" in record.output_tail
    assert f"error {record.restarts}" not in record.output_tail


def test_a_killed_process_comes_back_with_another_pid_without_limit(start: Start) -> None:
    kept = start(f"{BEAT}; exec sleep 1000", limits=FEW)
    pids = set()
    for restarts in range(4):
        running = kept.wait_record(lambda r: r.state == "running" and r.restarts == restarts)  # noqa: B023
        assert process_records.live_state(running) == "running"
        pids.add(kept.child())
        os.kill(kept.child(), signal.SIGKILL)
    assert len(pids) == 4
    assert running.last_exit == LastExit(None, "SIGKILL", ANY, None)
    assert "ended by SIGKILL" in kept.log()


def test_the_state_is_starting_until_the_first_heartbeat_whatever_its_time(start: Start) -> None:
    beat = f'touch -d 1999-01-01 "${VARIABLE}"'
    kept = start(f"until [ -e go ]; do sleep 0.01; done; {beat}; exec sleep 1000")
    assert kept.wait_record(lambda record: record.pid).state == "starting"
    kept.file("go").touch()
    kept.wait_record(lambda record: record.state == "running")


def test_exit_codes_are_classified_as_the_table_says() -> None:
    crashes = ("SEGV", "ABRT", "BUS", "FPE", "ILL", "SYS")
    codes = [*(-signal.Signals[f"SIG{name}"] for name in crashes), 70, 127]
    assert [classify_exit(code) for code in codes] == ["crash"] * 6 + ["failed"] * 2


@pytest.mark.parametrize(("kind", "has_beat"), [("retry", False), ("crash", True)])
def test_delays_double_until_a_healthy_run(kind: ExitKind, has_beat: bool) -> None:
    policy = RestartPolicy(Limits(max_crashes=100, first_delay_s=0.5, longest_delay_s=10.0))
    delays = [policy.decide(kind, 1.0, has_beat).delay_s for _ in range(7)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert policy.decide(kind, 60.0, has_beat).delay_s == 0.5


def test_a_heartbeat_ends_a_row_of_retries_and_resets_their_delay() -> None:
    policy = RestartPolicy(Limits(max_restarts=2, first_delay_s=0.5))
    decisions = [policy.decide("retry", 1.0, beat) for beat in (False, False, True, False, False)]
    assert [decision.delay_s for decision in decisions] == [0.5, 1.0, 0.5, 1.0, 2.0]
    assert [decision.again for decision in decisions] == [True, True, True, True, False]
    assert policy.decide("retry", 60.0, has_beat=False).again, "so does a healthy run"


def test_only_a_healthy_run_ends_a_row_of_crashes() -> None:
    policy = RestartPolicy(Limits(max_crashes=3))
    decisions = [policy.decide("crash", uptime_s, has_beat=True) for uptime_s in (1, 1, 61, 1, 1)]
    assert [decision.again for decision in decisions] == [True, True, True, True, False]
    firsts = [decision.is_first_failure for decision in decisions]
    assert firsts == [True, False, True, False, False]


def test_a_stopped_process_ends_in_order(start: Start) -> None:
    kept = start(f"trap 'echo last words; exit 0' TERM; {BEAT}; while :; do sleep 0.02; done")
    running = kept.wait_record(lambda record: record.state == "running")
    assert process_records.terminate(running)
    record = kept.ended()
    assert kept.process.returncode == 0
    assert (record.state, record.last_exit) == ("stopped", LastExit(0, None, ANY, "stop"))
    assert "last words" in kept.log()


@pytest.mark.parametrize(
    ("signals", "grace_s"),
    [
        ([signal.SIGTERM], 0.1),
        ([signal.SIGTERM, signal.SIGINT], 1000.0),
        ([signal.SIGQUIT], 1000.0),
    ],
)
def test_a_process_that_ignores_term_is_killed_after_the_grace_time_or_a_second_signal(
    start: Start, signals: list[signal.Signals], grace_s: float
) -> None:
    kept = start(DEAF, grace_s=grace_s)
    kept.wait_log("deaf")
    for signum in signals:
        kept.process.send_signal(signum)
    assert kept.ended().state == "stopped"
    assert kept.process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("code", [129, 130, 143])
@pytest.mark.parametrize(("role", "task", "restarts"), [("ps", 1, 1), ("worker", 1, 0)])
def test_after_a_signal_of_its_own_only_a_worker_stays_out(
    start: Start, code: int, role: str, task: int, restarts: int
) -> None:
    record = start(f"exit {code}", role=role, task=task, limits=FEW).ended()
    assert (record.state, record.restarts) == ("failed", restarts)


def test_a_chief_that_leaves_in_order_for_its_memory_counts_as_crashed(start: Start) -> None:
    script = f"trap 'exit 143' TERM; {BEAT}; while :; do sleep 0.02; done"
    record = start(script, **LARGE).ended()
    assert (record.state, record.restarts) == ("failed", Limits().max_crashes - 1)


def test_two_hangups_still_let_the_process_end_in_order(start: Start) -> None:
    script = (
        "trap 'echo asked; until [ -e go ]; do sleep 0.01; done; exit 0' TERM;"
        "echo ready; while :; do sleep 0.02; done"
    )
    kept = start(script)
    kept.wait_log("ready")
    kept.process.send_signal(signal.SIGHUP)
    kept.wait_log("\nasked")
    for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        kept.process.send_signal(signum)
    kept.file("go").touch()
    record = kept.ended()
    assert (record.state, record.last_exit) == ("stopped", LastExit(0, None, ANY, "hangup"))
    assert kept.process.returncode == 0


def test_under_nohup_a_hangup_is_ignored(start: Start) -> None:
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    kept = start("echo ready; until [ -e go ]; do sleep 0.01; done", nohup)
    kept.wait_log("ready")
    kept.process.send_signal(signal.SIGHUP)
    kept.file("go").touch()
    assert kept.ended().state == "done"


def test_a_delay_ends_with_a_requested_restart_or_with_a_stop(start: Start) -> None:
    kept = start("exit 75", limits=Limits(first_delay_s=1000.0, longest_delay_s=1000.0))
    waiting = kept.wait_record(lambda record: record.state == "restarting")
    assert process_records.signal_keeper(waiting, signal.SIGUSR1)
    kept.wait_record(lambda record: record.state == "restarting" and record.restarts == 1)
    kept.process.terminate()
    assert kept.ended().state == "stopped"
    assert kept.process.returncode == 75


def test_a_requested_restart_is_immediate_and_counts_as_no_failure(start: Start) -> None:
    limits = Limits(max_restarts=0, first_delay_s=1000.0, longest_delay_s=1000.0)
    kept = start(f"{BEAT}; exec sleep 1000", limits=limits)
    for restarts in range(2):
        running = kept.wait_record(lambda r: r.state == "running" and r.restarts == restarts)  # noqa: B023
        assert process_records.signal_keeper(running, signal.SIGUSR1)
    after = kept.wait_record(lambda record: record.state == "running" and record.restarts == 2)
    ended = LastExit(None, "SIGTERM", ANY, "restart")
    assert (after.last_exit, after.first_error) == (ended, None)


DAEMON = "import os, time; os.setsid(); open('left','w').write(str(os.getpid())); time.sleep(99)"


@pytest.mark.parametrize(
    "leaves",
    [
        "sh -c 'trap \"\" TERM HUP; echo $$ > left; while :; do sleep 0.05; done' &",
        f"({shlex.join([*PYTHON, DAEMON])} &);",
    ],
    ids=["in its group", "out of its group"],
)
def test_descendants_are_killed_with_their_process(start: Start, leaves: str) -> None:
    kept = start(f"{leaves} until [ -s left ]; do sleep 0.01; done")
    assert kept.ended().state == "done"
    left = int(kept.file("left").read_text())
    wait_for(lambda: is_gone(left))


def test_a_descendant_of_another_user_is_left_and_ends_no_keeper(monkeypatch: Patch) -> None:
    """As a command of sudo, and where the kernel does not list the children."""
    listed = mock.Mock()
    monkeypatch.setattr(spawn, "_CHILDREN", listed)
    monkeypatch.setattr(spawn, "_prctl", mock.Mock())  # this process adopts none
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with contextlib.closing(spawn.Guardian()) as guardian, cat:
        listed.read_text.return_value = f"{cat.pid}"
        with mock.patch.object(os, "kill", side_effect=PermissionError) as kill:
            guardian.end_adopted()
        assert kill.called
        assert cat.poll() is None
        listed.read_text.side_effect = PermissionError
        assert guardian.reap_adopted() == []


NO_DEATH_SIGNAL = "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)"
LEFT = "import os, subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True)"


@pytest.mark.parametrize("means", ["both", "death signal", "guardian"])
def test_a_killed_keeper_takes_its_process_along(start: Start, means: str) -> None:
    """The death signal alone ends the process, the guardian alone also its group."""
    alone = [NO_DEATH_SIGNAL] if means == "guardian" else []
    kept = start([sys.executable, "-I", "-c", "\n".join([*alone, LEFT, "p.wait()"])])
    wait_for(lambda: re.search(r"^\d+$", kept.log(), re.MULTILINE))
    child = kept.child()
    pids = [child, *(p.pid for p in psutil.Process(child).children())]
    assert len(pids) == 2
    if means == "death signal":
        os.kill(kept.guardian(), signal.SIGKILL)
    kept.process.kill()
    kept.process.wait()
    wait_for(lambda: all(is_gone(pid) for pid in (pids[:1] if means == "death signal" else pids)))
    if means == "death signal":
        os.kill(pids[1], signal.SIGKILL)
    record = kept.record()
    assert (record.state, process_records.live_state(record)) == ("starting", "dead")


def test_a_paused_guardian_does_not_keep_its_keeper(start: Start) -> None:
    kept = start(f"{BEAT}; exec sleep 1000")
    guardian = psutil.Process(kept.guardian())
    guardian.suspend()
    kept.process.terminate()
    try:
        assert kept.ended().state == "stopped"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            guardian.kill()  # else it would stay, as it reads nothing


def test_a_parent_that_is_gone_already_ends_the_keeper(start: Start) -> None:
    assert start("exec sleep 1000", parent=2**30).ended().state == "stopped"
