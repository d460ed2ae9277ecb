"""Measure the cost of observing a run: `status` in seconds, and `watch` in CPU.

    python benchmarks/watching.py --output benchmarks/results/watching.csv

The run is simulated: as many living processes as requested, whose files change as in a real run.
`status` is started anew each time; `watch` draws on a terminal of 120 × 50 for half a minute, and
its user and system time is measured.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.watching")

import argparse
import csv
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from a3c.process import process_records  # noqa: E402
from a3c.run import rundir  # noqa: E402
from tests.fake_runs import FakeRun, living  # noqa: E402

LAUNCHER = str(REPOSITORY / "launch_cluster.py")
ROW_INTERVAL_S = 2.0
BEAT_INTERVAL_S = 1.0
WARM_UP_S = 5.0


@contextmanager
def busy_run(directory: Path, workers: int) -> Iterator[FakeRun]:
    """A run of living processes, with a thread that updates its files as they would."""
    made = living(directory / "run", workers=workers)
    names = ["ps-0", *(f"worker-{i}" for i in range(workers))]
    over = threading.Event()
    with ExitStack() as stack:
        for name in names:
            sleeper = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
            stack.callback(sleeper.kill)
            identity = process_records.identify(sleeper.pid)
            made.process(name, child=identity, keeper=identity)
        thread = threading.Thread(target=_go_on, args=(made, names, over))
        stack.callback(thread.join)
        stack.callback(over.set)
        thread.start()
        yield made


def _go_on(made: FakeRun, names: list[str], over: threading.Event) -> None:
    """Write rows and episodes and touch heartbeats until `over` is set."""
    step, turn = 4_600_000, 0
    while not over.wait(BEAT_INTERVAL_S):
        turn, made.now = turn + 1, time.time()
        step += 1150
        for i, name in enumerate(names):
            made.run.heartbeat(name).touch()
            if name == "worker-0" and turn % round(ROW_INTERVAL_S / BEAT_INTERVAL_S) == 0:
                made.rows(name, [made.chief_row(step, 0.0, 13.0)])
            elif name != "ps-0" and turn % round(ROW_INTERVAL_S / BEAT_INTERVAL_S) == 0:
                made.rows(name, [made.worker_row(step, 0.0)])
                made.rows("episodes", [{"time": made.now, "env_steps": step, "worker": i - 1}])


def time_status(made: FakeRun, *arguments: str) -> float:
    """Seconds of one `status`, from its start to its end."""
    began = time.perf_counter()
    command = [sys.executable, LAUNCHER, "status", str(made.run.path), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def watch_percent(made: FakeRun, seconds: float) -> float:
    """CPU of `watch` on a terminal, in percent of a core."""
    master, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    command = [sys.executable, LAUNCHER, "watch", str(made.run.path)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as watching:
        reader = threading.Thread(target=_swallow, args=(master,), daemon=True)
        reader.start()
        try:
            time.sleep(WARM_UP_S)
            before = _cpu_s(watching.pid)
            time.sleep(seconds)
            return 100 * (_cpu_s(watching.pid) - before) / seconds
        finally:
            watching.kill()
            os.close(terminal)


def _swallow(master: int) -> None:
    try:
        while os.read(master, 65536):
            pass
    except OSError:  # the terminal is closed
        os.close(master)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main() -> None:
    """Measure, write the CSV, summarise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--times", type=int, default=10, help="starts of `status`, each form")
    parser.add_argument("--seconds", type=float, default=30.0, help="of `watch`")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[tuple[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        busy_run(Path(scratch), arguments.workers) as made,
    ):
        time_status(made)  # fills the page cache
        for _ in range(arguments.times):
            rows.append(("status_s", round(time_status(made), 3)))
            rows.append(("status_json_s", round(time_status(made, "--json"), 3)))
        rows.append(("watch_cpu_percent", round(watch_percent(made, arguments.seconds), 2)))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("w", newline="") as file:
        file.write(f"# python benchmarks/watching.py {' '.join(sys.argv[1:])}\n")
        file.write(f"# commit {rundir.git_commit()}, {os.cpu_count()} cores, ")
        file.write(f"load {os.getloadavg()[0]:.1f}\n")
        csv.writer(file).writerows([("what", "value"), *rows])
    for what in dict.fromkeys(name for name, _ in rows):
        print(f"{what:20} {statistics.median(value for name, value in rows if name == what):g}")


if __name__ == "__main__":
    main()
