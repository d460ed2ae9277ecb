"""Settings for every test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.runs import REPOSITORY, Python
from tests.tmux_runs import Tmux

# A busy machine makes single examples slow; that is no failure.
settings.register_profile("a3c", deadline=None)
settings.load_profile("a3c")

# Workers have a low priority, and would hardly run beside the other tests, which measure times.
os.environ["A3C_WORKER_NICE"] = "0"

# Under nohup, as some CI runs, SIGHUP is ignored, and children would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A test session that is told to end, by a time limit for example, still takes its clusters along.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    socket, work = tmp_path / "socket", tmp_path / "work"
    socket.mkdir()
    work.mkdir()
    mine = Tmux(socket, work)
    yield mine
    mine("kill-server")


@pytest.fixture
def python() -> Iterator[Python]:
    """Starts code in a Python of its own, with pipes; all of them are killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # or communicate would miss what readline has read ahead
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
