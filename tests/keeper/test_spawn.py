"""The group of a child ends with it, even where no orphan comes back to us."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from a3c.keeper.spawn import HeartbeatMonitor

ROOT = Path(__file__).parent.parent.parent

LEAVES_ONE_BEHIND = """
import os, sys, time
from a3c.keeper import spawn
reader, writer = os.pipe()
pid = spawn.start(["sh", "-c", "sleep 1000 & echo $!; exit 3"], os.environ, None, writer)
while (code := spawn.collect(pid)) is None:
    time.sleep(0.01)
print(code, os.read(reader, 100).decode())
"""


def test_the_group_is_killed_before_the_dead_child_gives_up_its_number() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_ONE_BEHIND],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    code, left = done.stdout.split()
    assert code == "3"
    deadline = time.monotonic() + 20.0
    while psutil.pid_exists(int(left)) and psutil.Process(int(left)).status() != "zombie":
        assert time.monotonic() < deadline, "a process of the group lives on"
        time.sleep(0.01)


def test_a_start_that_fails_says_why_and_leaves_no_process() -> None:
    code = (
        "import os\nfrom a3c.keeper import spawn\n"
        "try: spawn.start(['true'], os.environ, spawn.Path('/no/such/directory'), 1)\n"
        "except FileNotFoundError: print('said')\n"
        "try: os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError: print('none left')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "said\nnone left\n"


@pytest.mark.parametrize("exists", [True, False])
def test_a_beat_in_the_same_tick_of_the_clock_as_the_start_is_seen(
    tmp_path: Path, exists: bool
) -> None:
    path = tmp_path / "heartbeat"
    before = time.time_ns()
    if exists:
        path.touch()
        before = path.stat().st_mtime_ns
    monitor = HeartbeatMonitor(path)
    assert path.stat().st_mtime_ns == 0
    os.utime(path, ns=(before, before))
    assert monitor.check(0.25)
