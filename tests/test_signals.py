"""Leaving on signals, in real processes without TensorFlow."""

import os
import signal
import subprocess
import time

import pytest

from tests.runs import Python, line_of

START = """
import ctypes, logging, os, signal, sys, threading, time
from a3c.process import signals
logging.basicConfig(format="%(message)s", level=logging.INFO)
stop = signals.StopRequest()
stop.install()
def ready():
    os.write(1, b"ready\\n")
"""
# Waiting for a lock that it holds itself, a thread is in C for good; no signal brings it back.
STUCK = """
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
ready()
libc.pthread_mutex_lock(mutex)
"""
IN_C = START + "signals.SAME_WITHIN_S = 0.0\n" + STUCK
ORDERLY = START + (
    "assert not stop.wait(0.01); ready(); stop.wait(60); print('left', stop.signal, stop.is_set())"
)


@pytest.fixture
def start(python: Python) -> Python:
    """Starts programs, and waits until they say that they are ready."""

    def begin(code: str) -> subprocess.Popen[bytes]:
        process = python(code)
        assert line_of(process.stdout) == b"ready\n"
        return process

    return begin


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_requests_the_end(start: Python, number: signal.Signals) -> None:
    process = start(ORDERLY)
    process.send_signal(number)
    returned, out, err = end_of(process)
    assert returned == 0
    assert out.split()[:2] == ["left", str(int(number))]
    assert f"{number.name}: leaving" in err


def signal_until_gone(process: subprocess.Popen[bytes], numbers: list[signal.Signals]) -> None:
    """Two signals that the process takes one by one: the second once it said the first."""
    process.send_signal(numbers[0])
    assert line_of(process.stderr) == f"{numbers[0].name}: leaving\n".encode()
    process.send_signal(numbers[1])


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_process_stuck_in_c(start: Python, second: signal.Signals) -> None:
    process = start(IN_C)
    began = time.monotonic()
    signal_until_gone(process, [signal.SIGTERM, second])
    assert end_of(process)[0] == 128 + second
    assert time.monotonic() - began < 8  # less than the deadline: the second signal did it


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_another_at_once_count_as_one(start: Python, second: signal.Signals) -> None:
    """As when a machine goes down: its keeper passes SIGTERM on; a session adds SIGHUP."""
    process = start(ORDERLY.replace("print(", "time.sleep(0.5); print("))
    signal_until_gone(process, [signal.SIGTERM, second])
    assert end_of(process)[:2] == (0, "left 15 True\n")


CLOGGED = """
read, write = os.pipe()
os.dup2(write, 2)
os.set_blocking(2, False)
try:
    while True: os.write(2, b"x" * 65536)
except BlockingIOError:
    pass
os.set_blocking(2, True)
stop.leave_within_s, signals.SAME_WITHIN_S = 60, 0.0
threading.Thread(target=logging.info, args=("holds the lock of the log for ever",)).start()
ready()
stop.wait(60)
os.write(1, b"asked\\n")
time.sleep(60)
"""


def test_an_unread_log_delays_neither_the_request_nor_the_exit(start: Python) -> None:
    process = start(START + CLOGGED)
    process.send_signal(signal.SIGTERM)
    assert line_of(process.stdout) == b"asked\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM


def test_leaving_now_flushes_the_output(start: Python) -> None:
    code = START + (
        "ready(); print('to stdout'); sys.stderr.write('to stderr'); "
        "threading.Thread(target=time.sleep, args=(60,)).start(); signals.leave_now(75)"
    )
    assert end_of(start(code)) == (75, "to stdout\n", "to stderr")


def test_work_that_must_be_done_is_done_at_the_deadline(start: Python) -> None:
    """The main thread is stuck; another one saves, for as long as that takes."""
    code = START + "stop.leave_within_s = 0.2\n"
    code += "def save():\n    time.sleep(0.5)\n    os.write(1, b'saved\\n')\n"
    process = start(code + "stop.at_the_deadline = save\n" + STUCK)
    process.terminate()
    returned, out, err = end_of(process)
    assert (returned, out) == (128 + signal.SIGTERM, "saved\n")
    assert "SIGTERM: leaving" in err


def test_a_lost_exit_is_made_up_for_at_the_deadline(start: Python) -> None:
    """An exception in a destructor is only reported, so the process would go on."""
    code = START.replace("stop.install()", "") + (
        "signals.LEAVE_WITHIN_S = 0.2; signals.leave_on_signals()\n"
        "class Lost:\n    def __del__(self): ready(); time.sleep(60)\n"
        "Lost(); time.sleep(60)"
    )
    process = start(code)
    process.send_signal(signal.SIGINT)
    returned, _, err = end_of(process)
    assert returned == 128 + signal.SIGINT
    assert "Leaving: 130" in err


def test_a_command_that_is_done_leaves_although_a_thread_goes_on(start: Python) -> None:
    code = START + (
        "signals.EXIT_WITHIN_S = 0.2; threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ready(); sys.exit(signals.run_command(lambda: 3))"
    )
    assert start(code).wait(5.0) == 3


FORKS = """
import multiprocessing
started = multiprocessing.Barrier(3)
def sleep():
    started.wait()
    time.sleep(20)
fork = multiprocessing.get_context("fork").Process
children = [fork(target=sleep, daemon=True) for _ in range(2)]
for child in children:
    child.start()
started.wait()
ready()
"""


def test_a_fork_that_is_terminated_ends_and_this_process_goes_on(start: Python) -> None:
    """An environment may have processes of its own, and end them."""
    code = START + FORKS + "children[0].terminate(); children[0].join(10)\n"
    code += "print(children[0].exitcode, stop.wait(0.5))"
    assert end_of(start(code)) == (0, "-15 False\n", "")


def test_ctrl_c_counts_once_although_forks_get_it_too(start: Python) -> None:
    code = START + "signals.SAME_WITHIN_S = 0.0; os.setsid()\n" + FORKS
    process = start(code + "stop.wait(60); time.sleep(0.5); print('left', stop.signal)")
    os.killpg(process.pid, signal.SIGINT)
    assert end_of(process)[:2] == (0, "left 2\n")


CHILDREN = """
import psutil, subprocess, time
from a3c.process.signals import end_children
sh = lambda text: subprocess.Popen(["sh", "-c", text])
sleeping = lambda of: [p for p in psutil.Process(of.pid).children() if p.name() == "sleep"]
earlier = sh("sleep 0.5; sleep 100; true")
with end_children():
    left = sh("sleep 100; true")
    while not sleeping(left):
        time.sleep(0.01)
    (below,) = sleeping(left)
    time.sleep(1.0)
print(left.wait(10), below.wait(10), len(sleeping(earlier)))
for process in (*sleeping(earlier), earlier):
    process.kill()
"""


def test_only_processes_that_were_left_are_ended_with_all_below_them(start: Python) -> None:
    assert end_of(start("print('ready', flush=True)" + CHILDREN))[:2] == (0, "-9 None 1\n")
