"""The output of commands: one-line errors, and text that is safe on any terminal."""

import contextlib
import ctypes
import errno
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TextIO

from a3c.errors import A3CError, UserError
from a3c.process.environment import REPOSITORY

# The commands of an installed package, see pyproject.toml.
_INSTALLED = {"launch_cluster.py": "a3c", "evaluate.py": "a3c-evaluate", "plot.py": "a3c-plot"}
MAX_CHARS = 1000  # of an error line; a refused value can be as long as a file


def prepare() -> None:
    """Open closed standard streams, and let stdout print any text."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # as after `>&-`
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so this one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")


@contextlib.contextmanager
def stdout_apart() -> Iterator[TextIO]:
    """Send to stderr what environments print, even from C; yields the stdout for our own output."""
    stdout = sys.stdout
    try:
        is_replaced = stdout.fileno() != 1
    except OSError:  # it isn't a file
        is_replaced = True
    with contextlib.redirect_stdout(sys.stderr):
        if is_replaced:
            yield stdout
            return
        stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            with os.fdopen(os.dup(kept), "w", -1, stdout.encoding, stdout.errors) as ours:
                yield ours
        finally:
            stdout.flush()
            ctypes.CDLL(None).fflush(None)  # what C has buffered
            os.dup2(kept, 1)
            os.close(kept)


def refuse(prog: str, error: A3CError | OSError) -> int:
    """Print the error in one line on stderr and return its exit code.

    An OSError is raised again, unless stdout or the current folder causes it.
    """
    if isinstance(error, OSError):
        return _refuse_system(prog, error)
    with contextlib.suppress(OSError):  # stderr may be full
        sys.stderr.write(f"{prog}: {one_line(str(error))}\n")
    return error.exit_code


def _refuse_system(prog: str, error: OSError) -> int:
    if isinstance(error, BrokenPipeError):  # stdout was closed, as in `status | head -1`
        discard(sys.stdout)  # flushing the rest of the buffer would fail again
        return 128 + signal.SIGPIPE
    try:
        Path.cwd()
    except FileNotFoundError:
        return refuse(prog, UserError("the current folder is gone: cd elsewhere"))
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
        raise error
    try:
        sys.stdout.write("\n")  # the text that failed may no longer be in the buffer
        sys.stdout.flush()
    except OSError as refused:
        discard(sys.stdout)
        why = f"stdout can't be written ({refused.strerror}): make room, or send it elsewhere"
        return refuse(prog, UserError(why))
    raise error


def discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def program(script: str) -> str:
    """The name of a script of ours: `launch_cluster.py`, or `a3c` in an installed package."""
    is_installed = REPOSITORY.name in ("site-packages", "dist-packages")
    return _INSTALLED.get(script, script) if is_installed else script


def command(name: str) -> str:
    """The command for a script of ours, or for a program installed beside this Python."""
    python = Path(sys.executable)
    is_on_path = shutil.which("python") == sys.executable
    name = program(name)
    if not name.endswith(".py"):
        own = python.parent / name  # missing in a user's installation, where it is on the path
        return name if is_on_path or not own.exists() else shlex.quote(relative_path(own))
    words = ["python" if is_on_path else relative_path(python), relative_path(REPOSITORY / name)]
    return shlex.join(words)


def relative_path(path: Path) -> str:
    """The path relative to the current folder if it is inside it, else the whole path."""
    shown = str(path)
    with contextlib.suppress(FileNotFoundError, ValueError):  # no folder any more, or another one
        shown = str(path.absolute().relative_to(Path.cwd()))
    return f"./{shown}" if shown.startswith("-") else shown  # a command would see a flag


def count(number: int, one: str, more: str = "") -> str:
    """A number with its noun: `1 worker`, `2 workers`; `more` is an irregular plural."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def table(rows: Sequence[Sequence[str]], num_left: int | None = None) -> list[str]:
    """The rows as aligned lines; columns after the first `num_left` are aligned right."""
    columns = []
    for place, column in enumerate(zip(*rows, strict=True)):
        side = "<" if num_left is None or place < num_left else ">"
        columns.append([f"{cell:{side}{max(map(len, column))}}" for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def format_mean(mean: float, mark: float | None) -> str:
    """Format a mean with enough decimals to show whether it reaches the mark printed beside it."""
    for decimals in range(2 if abs(mean) < 1 else 1, 7):
        shown = round(mean, decimals)
        if mark is None or (round(mark, decimals) == mark and (shown >= mark) == (mean >= mark)):
            break
    return f"{mean:,.{decimals}f}"


class ProgressLine:
    """Shows the progress of long work on stderr: one line on a terminal, few lines elsewhere."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._began_at = self._said_at = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write("\r\x1b[K")

    def say(self, text: str) -> None:
        """Show a text, unless the last one is too recent."""
        now = self._clock()
        if now - self._said_at >= (0.5 if self._is_terminal else 10.0):
            self._said_at = now
            columns = shutil.get_terminal_size().columns
            self._write(f"\r{text[: columns - 1]}\x1b[K" if self._is_terminal else f"{text}\n")

    def played(self, ended: int, games: int, env_steps: int) -> None:
        """Show how many games have ended, and about how long the others will take."""
        text = f"played {ended:,} of {count(games, 'game')}, {count(env_steps, 'env step')}"
        if ended:
            left_s = (self._clock() - self._began_at) / ended * (games - ended)
            text += f", about {left_s:,.0f} s left"
        self.say(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed; the work goes on
            self._stream.write(text)
            self._stream.flush()


def one_line(text: str) -> str:
    """The text in one line, without control characters, at most `MAX_CHARS` long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= MAX_CHARS else f"{shown[: MAX_CHARS - 300]} ... {shown[-290:]}"
