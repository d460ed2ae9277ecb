"""The machine of a measurement, and tables that record it."""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.machine")

import atexit
import contextlib
import csv
import errno
import io
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import psutil

from a3c.process import signals
from a3c.process.process_records import write_atomically
from a3c.run import rundir

T = TypeVar("T")

RESULTS = Path(__file__).resolve().parent / "results"


class Where(NamedTuple):
    """The first columns of tables of measurements."""

    time: str
    commit: str
    machine: str
    load: float  # runnable tasks, averaged over the last minute


def here() -> Where:
    """This machine at this moment."""
    return Where(
        time.strftime("%Y-%m-%d %H:%M:%S"),
        rundir.git_commit() or "",
        f"{os.cpu_count()} cores, {cpu_model()}",
        round(os.getloadavg()[0], 1),
    )


def cpu_model() -> str:
    """The kernel's name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write(path: Path, rows: Iterable[Any]) -> None:
    """Write named tuples as CSV, after a comment with the command; without rows, do nothing."""
    rows = list(rows)
    if rows:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"# {command()}\n{_lines([rows[0]._fields, *rows])}")


def append(path: Path, rows: Iterable[Any]) -> None:
    """Append named tuples to a table, all or none; the file is created if it is missing."""
    if not path.exists():
        write(path, rows)
        return
    added = _lines(rows).encode()
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(added) < len(added):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _lines(rows: Iterable[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, as text by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def read_as(path: Path, kind: type[T]) -> list[T]:
    """The rows of a CSV file as named tuples, each column converted to its type."""
    types = get_type_hints(kind)
    return [
        kind(**{k: v == "True" if types[k] is bool else types[k](v) for k, v in row.items()})
        for row in read(path)
    ]


def table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A Markdown table for the docs."""
    head = [*titles]
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]


def filled(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    """A page with its tables filled, each between `<!-- table: NAME -->` and `<!-- end -->`.

    Tables without a place in the page are left out; tables of other programs stay unchanged.
    """

    def anew(place: re.Match[str]) -> str:
        lines = tables.get(place["name"])
        if lines is None:
            return place[0]
        return "\n".join([place["begin"], "", *lines, "", place["end"]])

    pattern = r"(?P<begin><!-- table: (?P<name>.*?) -->)\n.*?(?P<end><!-- end -->)"
    return re.sub(pattern, anew, page, flags=re.DOTALL)


def end_on_signals() -> None:
    """Let SIGTERM, and SIGHUP unless it is ignored, end this process and all that it started."""
    # A signal that comes while a program is being started loses the only record of that program.
    atexit.unregister(kill_descendants)
    atexit.register(kill_descendants)
    for number in signals.not_ignored(signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)


def kill_descendants() -> None:
    """Kill the processes that this one has started, and theirs."""
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def end_by_signal(number: int, _frame: object) -> None:
    """A signal handler that exits in order, so no started programs are left behind."""
    raise SystemExit(128 + number)


def command() -> str:
    """The command line of this program."""
    main = sys.modules["__main__"].__spec__
    program = f"-m {main.name.removesuffix('.__main__')}" if main else sys.argv[0]
    return " ".join(["python", program, *sys.argv[1:]])
