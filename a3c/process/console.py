"""What a command says to people: an error in one line, and text that any terminal can take."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from a3c.errors import A3CError

_SCRIPTS = Path(__file__).resolve().parents[2]
MAX_CHARS = 1000  # of a line about an error: a value can be a whole file


def prepare() -> None:
    """Let stdout pass file names on as they are, those that are not UTF-8 too."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="surrogateescape" if stream is sys.stdout else "backslashreplace")


def refuse(prog: str, error: A3CError) -> int:
    """Say in one line on stderr why a command can't go on; the exit code for it."""
    sys.stderr.write(f"{prog}: {one_line(str(error))}\n")
    return error.exit_code


def unread() -> int:
    """Leave where nobody reads stdout any more, as in `status | head -1`; the exit code for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # what is left in the buffer would be refused again
    os.close(nowhere)
    return 128 + signal.SIGPIPE


def command(name: str) -> str:
    """How the user runs a script of ours, or a program beside this Python: as this one was run."""
    python = Path(sys.executable)
    is_on_path = shutil.which("python") == sys.executable
    if not name.endswith(".py"):
        return name if is_on_path else from_here(python.parent / name)
    return f"{'python' if is_on_path else from_here(python)} {from_here(_SCRIPTS / name)}"


def from_here(path: Path) -> str:
    """The path from here, where it is below here."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def count(number: int, one: str, more: str = "") -> str:
    """A number of things: `1 worker`, `2 workers`; `more` where an s is not enough."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def one_line(text: str) -> str:
    """The text in one line, without what a terminal would obey, and not longer than a screen."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= MAX_CHARS else f"{shown[: MAX_CHARS - 300]} ... {shown[-290:]}"
