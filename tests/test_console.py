"""Long work shows its progress, and commands work with any standard streams."""

import io
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from a3c.process import console
from a3c.process.console import ProgressLine
from tests import Patch
from tests.runs import DEADLINE_S, REPOSITORY, Python, call


def shown(stream: io.StringIO, step_s: float) -> str:
    """What is written while five games are played, one every `step_s` seconds."""
    times: Iterator[float] = iter(step_s * n / 2 for n in range(100))
    with ProgressLine(stream, lambda: next(times)) as progress:
        for ended in range(5):
            progress.played(ended, 5, 100 * (ended + 1))
    return stream.getvalue()


def test_a_terminal_shows_one_line_which_is_removed_at_the_end() -> None:
    stream = io.StringIO()
    with mock.patch.object(stream, "isatty", return_value=True):
        *lines, last = shown(stream, 1.0).split("\r")[1:]
    heads = [f"played {n} of 5 games" for n in range(5)]
    assert [line.partition(",")[0] for line in lines] == heads
    assert lines[0] == "played 0 of 5 games, 100 env steps\x1b[K"
    assert "s left" in lines[1]
    assert last == "\x1b[K"


def test_a_file_has_a_line_every_ten_seconds_and_none_for_short_work() -> None:
    assert shown(io.StringIO(), 0.5) == ""
    (line, *_) = shown(io.StringIO(), 12.0).splitlines()
    assert line.startswith("played 1 of 5 games, 200 env steps, about ")


def test_what_an_encoding_lacks_is_a_question_mark(monkeypatch: Patch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="ascii"))
    console.prepare()
    sys.stdout.write("4 × 2…\udcff")  # the last is a byte of a file name
    sys.stdout.flush()
    assert data.getvalue() == b"4 ? 2??"


def test_a_path_in_a_command_is_never_taken_for_a_flag(here: Path) -> None:
    assert {*map(console.relative_path, (Path("-run"), here / "-run"))} == {"./-run"}
    assert console.relative_path(Path("runs/-run")) == "runs/-run"
    here.rmdir()
    assert console.relative_path(Path("runs/run")) == "runs/run"


def test_a_command_can_be_pasted_whatever_the_folder_is_called(monkeypatch: Patch) -> None:
    monkeypatch.setattr(console, "REPOSITORY", Path("/my clones/a3c"))
    assert console.command("plot.py").endswith(" '/my clones/a3c/plot.py'")
    user_site = Path("/home/me/.local/lib/python3.11/site-packages")  # of `pip install --user`
    monkeypatch.setattr(console, "REPOSITORY", user_site)
    assert console.program("plot.py") == console.command("plot.py") == "a3c-plot"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("presets >&- <&-", 0, ""),
        ("frobnicate 2>&-", 2, ""),
        ("frobnicate 2> /dev/full", 2, ""),
        ("presets > /dev/full", 2, "stdout can't be written (No space left on device): make room"),
        ("status", 2, "the current folder is gone: cd elsewhere"),
    ],
)
def test_closed_streams_and_gone_folders(tmp_path: Path, words: str, code: int, said: str) -> None:
    (tmp_path / "here").mkdir()
    script = shlex.join([sys.executable, str(REPOSITORY / "launch_cluster.py")])
    gone = "rmdir ../here;" if words == "status" else ""
    done = call("sh", "-c", f"{gone} exec {script} {words}", cwd=tmp_path / "here")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


def test_a_table_of_layers_that_cannot_be_printed_is_said_in_one_line(tmp_path: Path) -> None:
    script = shlex.join([sys.executable, str(REPOSITORY / "model.py"), "--env-id", "CartPole-v1"])
    done = call("sh", "-c", f"exec {script} > /dev/full", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "stdout can't be written" in done.stderr


INTERRUPTED = """
import importlib, os, signal, sys
tool = importlib.import_module(sys.argv[1])
setattr(tool, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGINT))
sys.argv[1:] = sys.argv[3:]
sys.exit(tool.command())
"""


@pytest.mark.parametrize("words", ["plot draw", "model build --env-id CartPole-v1"])
def test_ctrl_c_ends_plot_and_model_without_a_traceback(python: Python, words: str) -> None:
    process = python(INTERRUPTED, *words.split())
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT, said
    assert b"Traceback" not in said
