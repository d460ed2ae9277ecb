"""When a keeper ends, its process and that process's descendants end too."""

import os
import re
import shlex
import signal
import sys
from unittest.mock import ANY

import psutil
import pytest

from a3c.keeper.restarts import Limits
from a3c.process import process_records
from a3c.process.process_records import LastExit
from tests.keeper.conftest import BEAT, DEAF, PYTHON, Start, wait_for
from tests.runs import is_gone


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


def test_two_hangups_still_let_the_process_end_in_order(start: Start) -> None:
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
    assert (record.state, record.last_exit) == ("stopped", LastExit(0, None, ANY, "hangup"))
    assert kept.process.returncode == 0


def test_under_nohup_a_hangup_is_ignored(start: Start) -> None:
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    kept = start("echo ready; until [ -e go ]; do sleep 0.01; done", {"preexec_fn": ignore_hangup})
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


def test_a_parent_that_is_gone_already_ends_the_keeper(start: Start) -> None:
    kept = start("exec sleep 1000", parent=2**30)
    assert kept.ended().state == "stopped"
