"""Settings for every test."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import Patch
from tests.runs import REPOSITORY, Python, started

# A busy machine makes single examples slow; that is no failure.
settings.register_profile("a3c", deadline=None)
settings.load_profile("a3c")

# Workers have a low priority, and would hardly run beside the other tests, which measure times.
os.environ["A3C_WORKER_NICE"] = "0"

# Under nohup, as some CI runs, SIGHUP is ignored, and children would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A test session that is told to end, by a time limit for example, still takes its clusters along.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Undo what programs that are called in this process, such as `evaluate.main`, set."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a run that is not there yet."""
    return tmp_path / "run"


@pytest.fixture
def python() -> Iterator[Python]:
    """Starts code in a Python of its own, with pipes; all of them are killed after the test."""
    # With a buffer, communicate would miss what readline has read ahead.
    pipes = {"cwd": REPOSITORY, "stdin": subprocess.PIPE, "text": False, "bufsize": 0}
    with contextlib.ExitStack() as stack:

        def start(code: str, *arguments: object) -> Any:
            command = [sys.executable, "-c", code, *map(str, arguments)]
            return stack.enter_context(started(command, **pipes))[0]

        yield start
