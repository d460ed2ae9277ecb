"""The user's own code: find it, import it, and report its errors in one line with the place."""

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from a3c.errors import A3CError, UserError
from a3c.process import console
from a3c.process.environment import IS_CLONE, REPOSITORY
from a3c.process.signals import Leaving

_LIBRARIES = (
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")),
    REPOSITORY / "a3c",
)
# Modules beside the scripts, which are found before those in the current folder.
_OURS = {"a3c", "envs", "evaluate", "examples", "launch_cluster", "model", "plot", "worker"}
if IS_CLONE:
    _OURS |= {"benchmarks", "tests"}
_MAX_CHARS = 400  # TensorFlow's messages can be pages long


class KnownNetwork(NamedTuple):
    recurrent: bool = False
    min_side: int = 0  # pixels of the smallest image allowed; 0: takes vectors too


@functools.cache
def networks() -> dict[str, KnownNetwork]:
    """The networks in model.py by name; empty if the table can't be read.

    It is read without running model.py, which would import TensorFlow. So a network added to
    `NETWORKS` is known to `--network`, to completion and to the checks before a start.
    """
    try:
        tree = ast.parse((REPOSITORY / "model.py").read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}  # importing model.py will report why
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        table = getattr(node, "value", None)
        if isinstance(table, ast.Dict) and getattr(targets[0], "id", None) == "NETWORKS":
            rows = zip(table.keys, table.values, strict=True)
            named = ((getattr(key, "value", None), row) for key, row in rows)
            return {name: _known(row) for name, row in named if isinstance(name, str)}
    return {}


def _known(row: ast.expr) -> KnownNetwork:
    """The properties in a call of `Architecture`, from its constant keyword arguments."""
    keywords = row.keywords if isinstance(row, ast.Call) else []
    found = {k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant)}
    side = found.get("min_side")
    return KnownNetwork(bool(found.get("recurrent")), side if isinstance(side, int) else 0)


def is_recurrent(network: str) -> bool:
    """Whether a network in model.py has a memory; a user's own is known only when it is built."""
    return networks().get(network, KnownNetwork()).recurrent


def import_module(name: str, subject: str) -> ModuleType:
    """Import a module of the user's, also from the current folder; UserError if that fails."""
    here, own = Path.cwd(), Path(*name.split("."))
    is_there = False
    with contextlib.suppress(OSError):  # such as too long a name
        is_there = own.is_dir() or own.with_suffix(".py").exists()
    top = name.partition(".")[0]
    is_clone = (here / "a3c" / "process" / "environment.py").exists()
    if not is_clone and top in _OURS and is_there:
        raise UserError(f"{subject}: a3c-cluster has a module {top} too: rename yours")
    if str(here) not in sys.path:
        sys.path.append(str(here))
    try:
        return importlib.import_module(name)
    except Leaving:
        raise
    except (Exception, SystemExit) as error:
        raise _refusal(name, subject, error) from error


def find(place: str, subject: str, wanted: str = "function") -> Callable[..., Any]:
    """Import what `package.module:name` names; raises UserError if it can't be called."""
    module, _, name = place.partition(":")
    remedy = f"give package.module:{wanted}"
    found = getattr(import_module(module, subject), name, None)
    if found is None:
        raise UserError(f"{subject}: {module} has no {name}; {remedy}")
    if not callable(found):
        raise UserError(f"{subject}: {name} is {kind_of(found)} and no {wanted}; {remedy}")
    return found


def check_call(
    function: Callable[..., Any], subject: str, /, *names: str, **arguments: Any
) -> None:
    """Raise UserError if a function of the user's can't be called with these arguments."""
    with contextlib.suppress(TypeError, ValueError):  # some functions in C have no signature
        signature = inspect.signature(function)
        try:
            signature.bind(*names, **arguments)
        except TypeError as error:
            called = ", ".join([*names, *arguments]) or "nothing"
            remedy = f"fix it: it takes {signature} and is called with {called}"
            raise UserError(f"{subject}: TypeError: {error}; {remedy}") from error


def kind_of(thing: object) -> str:
    return "None" if thing is None else f"an object of type {type(thing).__name__}"


def require(package: str) -> None:
    """Raise ModuleNotFoundError if a package is missing; importing it might take seconds."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _refusal(name: str, subject: str, error: BaseException) -> UserError:
    remedy = "fix it"
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        remedy = f"install it ({console.command('pip')} install {package}), or fix the import"
        if package in _OURS:
            remedy = f"a3c-cluster has a module {package} too: rename yours, or fix the import"
        if name.startswith(error.name or " "):
            remedy = f"give a module that Python finds from {Path.cwd()}"
    return UserError(f"{subject}: importing {name} failed: {describe(error)}; {remedy}")


@contextlib.contextmanager
def as_user_error(subject: str) -> Iterator[None]:
    """Turn any error of the user's code into a UserError: one line that begins with `subject`."""
    try:
        yield
    except (A3CError, Leaving):
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{subject}: {describe(error)}; fix it") from error


def describe(error: BaseException) -> str:
    """An exception in one line: its place in the user's code, its type, its message."""
    where, message = _place(error), str(error)
    if isinstance(error, SyntaxError) and error.filename:
        where, message = (Path(error.filename), error.lineno or 0), error.msg
    prefix = f"{console.relative_path(where[0])}:{where[1]}: " if where else ""
    line = " ".join(f"{prefix}{type(error).__name__}: {message}".split()).removesuffix(":")
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 3] + "..."


def _place(error: BaseException) -> tuple[Path, int] | None:
    """The innermost line of the user's own code; None if only library code is involved."""
    frames = traceback.extract_tb(error.__traceback__)
    for number, frame in enumerate(reversed(frames)):
        path = Path(frame.filename)
        if not path.is_file() or any(path.resolve().is_relative_to(lib) for lib in _LIBRARIES):
            continue
        # envs.py and model.py call the user's code; they count only if they raised the error.
        if number and path.resolve().parent == REPOSITORY and path.stem in _OURS:
            continue
        return path, frame.lineno or 0
    return None
