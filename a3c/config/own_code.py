"""Find and import the user's own modules, and report their errors in one line with the place."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from a3c.errors import UserError

_REPOSITORY = Path(__file__).resolve().parents[2]
_LIBRARIES = (
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")),
    _REPOSITORY / "a3c",
)
_MAX_CHARS = 400  # TensorFlow's messages can be pages long


def import_module(name: str, subject: str) -> ModuleType:
    """Import a module of the user's, also from the current folder, as with `python -m`.

    Any error in the module becomes a UserError: one line that begins with `subject`.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _refusal(name, subject, error) from error


def _refusal(name: str, subject: str, error: BaseException) -> UserError:
    missing = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or " ")
    remedy = f"give a module that Python finds from {Path.cwd()}" if missing else "mend it"
    return UserError(f"{subject}: importing {name} failed: {describe(error)}; {remedy}")


def check_source(name: str, subject: str) -> None:
    """Raise UserError if a module can't be found or isn't valid Python, without running it.

    Modules inside packages are checked only at import, because finding them would run the package.
    """
    top = name.partition(".")[0]
    try:
        found = importlib.machinery.PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])
        if found is None:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
        if found.origin and found.origin.endswith(".py"):
            compile(Path(found.origin).read_bytes(), found.origin, "exec", dont_inherit=True)
    except (ImportError, SyntaxError, ValueError, RecursionError, OSError) as error:
        raise _refusal(name, subject, error) from error


def describe(error: BaseException) -> str:
    """An exception in one line: its place in the user's code, its type, its message."""
    where, message = _place(error), str(error)
    if isinstance(error, SyntaxError) and error.filename:
        where, message = (error.filename, error.lineno or 0), error.msg
    prefix = f"{_nice(where[0])}:{where[1]}: " if where else ""
    line = " ".join(f"{prefix}{type(error).__name__}: {message}".split()).removesuffix(":")
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 3] + "..."


def _place(error: BaseException) -> tuple[str, int] | None:
    """The innermost line of the user's own code; None if only library code is involved."""
    frames = traceback.extract_tb(error.__traceback__)
    for number, frame in enumerate(reversed(frames)):
        path = Path(frame.filename)
        if not path.is_file() or any(path.resolve().is_relative_to(lib) for lib in _LIBRARIES):
            continue
        # envs.py and model.py call the user's code; they count only if they raised the error.
        if number and path.resolve().parent == _REPOSITORY:
            continue
        return frame.filename, frame.lineno or 0
    return None


def _nice(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
