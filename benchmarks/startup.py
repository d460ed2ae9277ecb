"""Measure how long a run takes from Enter to its first update, and until all workers train.

    python benchmarks/startup.py --pairs 5 --output benchmarks/results/startup.csv

A bare `import tensorflow`, a run of 2 workers and a run of many take turns, so extra load on the
machine affects all equally. Run it on an otherwise idle machine; it prints the lines for
docs/launcher.md. Further arguments go to the launcher of the run with many workers.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.startup")

import argparse
import csv
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from a3c.process import process_records  # noqa: E402
from a3c.process.environment import process_environment  # noqa: E402
from a3c.run import rundir  # noqa: E402
from a3c.run.rundir import RunDir  # noqa: E402
from a3c.watch.processes import read_pss_mb  # noqa: E402
from benchmarks import machine  # noqa: E402

TIMEOUT_S = 600.0
POLL_S = 0.1


class Start(NamedTuple):
    """One row. Seconds are since Enter; `first_s` of an import is its whole duration."""

    case: str
    pair: int
    workers: int
    first_s: float  # to the first update of any worker
    all_s: float  # until every worker has pushed
    peak_runnable: int  # processes and threads that were runnable at the same time
    memory_mb: float  # largest decrease of available memory
    ps_pss_mb: float  # at the end
    worker_pss_mb: float


def bare_import(pair: int) -> Start:
    """One process that imports TensorFlow and ends."""
    environment = process_environment(os.environ, 1)
    began = time.time()
    command = [sys.executable, "-c", "import tensorflow"]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return Start("import", pair, 0, round(time.time() - began, 2), 0.0, 0, 0.0, 0.0, 0.0)


def start(case: str, pair: int, workers: int, *arguments: str) -> Start:
    """Start a run, wait until every worker has pushed, and stop it."""
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDir(Path(scratch) / "run")
        command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "--mode", "child"]
        command += ["--env-id", "CartPole-v1", "--workers", str(workers), *arguments]
        command += ["--run-dir", str(run.path), "--log-interval", "0.05"]
        command += ["--stop-at-return", "none", "--evaluation-episodes", "0"]
        before_mb = available_mb()
        began = time.time()
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as launcher:
            try:
                first, runnable, lowest_mb = watch(run, workers, launcher)
                ps_mb, worker_mb = memory(run)
            finally:
                launcher.send_signal(signal.SIGINT)
        times = (round(min(first) - began, 2), round(max(first) - began, 2))
        needed_mb = round(before_mb - lowest_mb)
        return Start(case, pair, workers, *times, runnable, needed_mb, ps_mb, worker_mb)


def watch(
    run: RunDir, workers: int, launcher: subprocess.Popen[bytes]
) -> tuple[list[float], int, float]:
    """Time of each worker's first update, most runnable tasks, least available memory."""
    deadline = time.monotonic() + TIMEOUT_S
    runnable, lowest_mb = 0, available_mb()
    names = [f"worker-{i}" for i in range(workers)]
    while True:
        runnable = max(runnable, num_runnable())
        lowest_mb = min(lowest_mb, available_mb())
        first = [at for name in names if (at := first_update(run.metrics(name))) is not None]
        if len(first) == workers:
            return first, runnable, lowest_mb
        if launcher.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no update of every worker: look with {run.path.parent}")
        time.sleep(POLL_S)


def first_update(metrics: Path) -> float | None:
    """The time of a worker's first row after an update."""
    return next((row["time"] for row in rows(metrics) if row.get("worker/updates_per_s")), None)


def rows(metrics: Path) -> Iterator[dict[str, Any]]:
    """The complete rows at the start of a file."""
    if metrics.exists():
        with metrics.open() as file:
            for line, _ in zip(file, range(10), strict=False):
                if line.endswith("\n"):
                    yield json.loads(line)


def memory(run: RunDir) -> tuple[float, float]:
    """PSS of the ps, and the largest PSS of a worker."""
    found: dict[str, list[float]] = {"ps": [], "worker": []}
    for record in process_records.read_records(run.path):
        found[record.role].append(read_pss_mb(record.pid or 0) or 0.0)
    return round(max(found["ps"])), round(max(found["worker"]))


def available_mb() -> float:
    """Memory that is available for new processes."""
    return psutil.virtual_memory().available / 1e6


def num_runnable() -> int:
    """Runnable tasks, without this one."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1


def main() -> None:
    """Measure pair by pair, write the CSV after each measurement, and summarise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=16, help="of the start in turn")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", choices=("two", "many"), help="one of the two comparisons")
    arguments, rest = parser.parse_known_args()
    commit = rundir.git_commit()  # of the running code; the working tree may change during the runs
    found: list[Start] = []
    for one in measurements(arguments, rest):
        found.append(one)
        print(" ".join(f"{key}={value}" for key, value in one._asdict().items()), flush=True)
        write(arguments.output, found, commit)
    print("\n".join(summary(found)))


def measurements(arguments: argparse.Namespace, rest: list[str]) -> Iterator[Start]:
    """Every measurement, in alternating order."""
    bare_import(0)  # fills the page cache
    for pair in range(1, arguments.pairs + 1):
        if arguments.only != "many":
            yield bare_import(pair)
            yield start("two", pair, 2)
        if arguments.only != "two":
            yield start("many", pair, arguments.workers, *rest)


def write(path: Path, found: list[Start], commit: str | None) -> None:
    """Write the CSV, with its origin in comment lines on top."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        file.write(f"# python benchmarks/startup.py {' '.join(sys.argv[1:])}\n")
        file.write(f"# commit {commit}, {os.cpu_count()} cores, {machine.cpu_model()}\n")
        file.write(f"# Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")
        writer = csv.writer(file)
        writer.writerow(Start._fields)
        writer.writerows(found)


def summary(found: list[Start]) -> list[str]:
    """Medians, as lines for the docs."""
    lines = ["", "| start | first update | all workers at work | runnable at once | memory |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for case in dict.fromkeys(one.case for one in found):
        mine = [one for one in found if one.case == case]
        first, everyone, runnable, memory_mb = (
            statistics.median(getattr(one, name) for one in mine)
            for name in ("first_s", "all_s", "peak_runnable", "memory_mb")
        )
        cells = (f"{first:.1f} s", f"{everyone:.1f} s", f"{runnable:.0f}", f"{memory_mb:,.0f} MB")
        lines.append(f"| {case}, {mine[0].workers} workers | {' | '.join(cells)} |")
    more = [
        two.first_s - one.first_s
        for one in found
        for two in found
        if one.case == "import" and two.case == "two" and one.pair == two.pair
    ]
    if more:
        spread = f"{min(more):.1f} to {max(more):.1f}"
        lines.append(
            f"\nfirst update after a bare import: {statistics.median(more):+.1f} s ({spread})"
        )
    return lines


if __name__ == "__main__":
    main()
