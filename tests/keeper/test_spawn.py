"""The group of a child ends with it, even where no orphan comes back to us."""

from __future__ import annotations

import subprocess
import sys

from tests.keeper.kept import ROOT, is_gone, wait_for

LEAVES_ONE_BEHIND = """
import os, time
from a3c.keeper import spawn
reader, writer = os.pipe()
pid = spawn.start(["sh", "-c", "sleep 1000 & echo $!; exit 3"], os.environ, None, writer)
while (code := spawn.collect(pid)) is None:
    time.sleep(0.01)
print(code, os.read(reader, 100).decode())
"""
FAILS = """
import os
from a3c.keeper import spawn
try: spawn.start(["true"], os.environ, "/no/such/directory", 1)
except FileNotFoundError: print("said")
try: os.waitpid(-1, os.WNOHANG)
except ChildProcessError: print("none left")
"""


def said_by(code: str) -> list[str]:
    """The lines that a program prints; a process of its own, as its children are counted."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_group_is_killed_before_the_dead_child_gives_up_its_number() -> None:
    code, left = said_by(LEAVES_ONE_BEHIND)[0].split()
    assert code == "3"
    wait_for(lambda: is_gone(int(left)))


def test_a_start_that_fails_says_why_and_leaves_no_process() -> None:
    assert said_by(FAILS) == ["said", "none left"]
