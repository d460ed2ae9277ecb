"""Programs that take turns on the same cores: all are alive, and all but one are frozen.

Short alternating turns mean that a slow phase of the machine affects all programs equally, and
start-up isn't measured. Each program writes its env steps to files, one row at each interval.
"""

import contextlib
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from a3c.process.environment import process_environment
from a3c.run.metrics import JsonlSink
from a3c.run.rows import last_rows
from a3c.run.rundir import REPOSITORY
from benchmarks import machine

START_TIMEOUT_S = 300.0
# TensorFlow waits for steps in intervals of 60 s. A server may hang forever if a step ends exactly
# with an interval, which can happen after a longer freeze. So programs are resumed before that.
MAX_FROZEN_S = 45.0
BRIEF_RUN_S = 0.3  # enough time for a step to end
SETTLE_S = 0.7  # at the start of a turn, not counted: caches warm up and queues empty
ROW_INTERVAL_S = 0.25
LOG_INTERVAL_S = 1.0  # of a cluster; its rows cost CPU time
POLL_S = 0.2
MIN_ROWS = 2


class Tree:
    """A process and all its descendants, which can be frozen together."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process
        self._frozen_since = 0.0

    def resume(self) -> None:
        """Let all processes run."""
        self._signal(signal.SIGCONT)

    def freeze(self) -> None:
        """Stop all processes, including those that start meanwhile."""
        for _ in range(2):
            self._signal(signal.SIGSTOP)
        self._frozen_since = time.monotonic()

    def let_run_briefly(self, ahead_s: float = 0.0) -> None:
        """Briefly resume processes that would be frozen for long `ahead_s` from now."""
        if time.monotonic() + ahead_s - self._frozen_since > MAX_FROZEN_S:
            self.resume()
            time.sleep(BRIEF_RUN_S)
            self.freeze()

    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes."""
        used = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def close(self) -> None:
        """Kill all processes, without waiting for an orderly shutdown."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _signal(self, number: int) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class StartError(SystemExit):
    """A program doesn't count env steps, so nothing can be measured."""


class Contestant(Tree):
    """A program with the files in which it counts env steps.

    `output` is the path of its output. Without `threads` its number of threads isn't limited.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        counts: Sequence[Path],
        *,
        tree: Path = REPOSITORY,
        environment: Mapping[str, str] | None = None,
        threads: int | None = 1,
        output: Path | None = None,
        workers: int = 0,
    ) -> None:
        self.name = name
        self._counts, self._workers = counts, workers
        self._output = output or Path(os.devnull)
        with self._output.open("a") as file:
            process = subprocess.Popen(
                command,
                cwd=tree,
                env={
                    **(process_environment(os.environ, threads) if threads else os.environ),
                    "PYTHONPATH": str(tree),
                    **(environment or {}),
                },
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        super().__init__(process)

    def wait_until_counting(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Block until its files have two rows and a cluster's chief counts all workers."""
        deadline = time.monotonic() + timeout_s
        while not self.is_counting(deadline):
            time.sleep(POLL_S)

    def is_counting(self, deadline: float) -> bool:
        """Whether it counts; raises StartError if it has ended, or at the deadline."""
        if all(self._counting(path) for path in self._counts):
            return True
        if self.exit_code() is not None or time.monotonic() > deadline:
            raise StartError(f"{self.name} did not start; exit {self.exit_code()}{self._said()}")
        return False

    def _counting(self, path: Path) -> bool:
        rows = last_rows(path)
        if len(rows) < 2:
            return False
        return int(rows[-1].get("cluster/workers", self._workers)) >= self._workers

    def _said(self) -> str:
        lines = [line for line in self._output.read_text().splitlines() if line.strip()]
        return f": {lines[-1][:200]}" if lines else ""

    def rate(self, begin: float, end: float) -> float:
        """Env steps a second between two times of the clock."""
        return sum(rate_between(path, begin, end) for path in self._counts)


def cluster(
    name: str,
    flags: Sequence[str],
    scratch: Path,
    *,
    tree: Path = REPOSITORY,
    environment: Mapping[str, str] | None = None,
) -> Contestant:
    """A cluster of ours, started by the launcher, which plays until it is ended."""
    run = scratch / name
    command = [sys.executable, "launch_cluster.py", "--mode", "child", "--run-dir", str(run)]
    command += ["--evaluation-episodes", "0", "--log-interval", str(LOG_INTERVAL_S)]
    command += ["--stop-at-return", "1e9", "--max-env-steps", str(10**12), *flags]
    counts = [run / "metrics" / "worker-0.jsonl"]
    workers = workers_of(flags)
    return Contestant(
        *(name, command, counts),
        tree=tree,
        environment=environment,
        output=scratch / f"{name}.txt",
        workers=workers,
    )


def workers_of(flags: Sequence[str]) -> int:
    """The number of workers that flags give, the last one; 0 if they give none."""
    given = [flags[i + 1] for i, flag in enumerate(flags[:-1]) if flag == "--workers"]
    return int(given[-1]) if given else 0


def side_by_side(commands: Iterable[Sequence[str]]) -> list[str]:
    """One command that runs several at once, as children of a shell that waits for all of them."""
    return ["sh", "-c", " & ".join([*map(shlex.join, commands), "wait"])]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the contestants' files; SIGTERM and SIGHUP end all contestants."""
    machine.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="a3c-turns-") as folder:
        yield Path(folder)


def freeze_when_counting(
    contestants: Sequence[Contestant], warm_up_s: float = 0.0
) -> dict[str, StartError]:
    """Freeze each once it has counted for `warm_up_s`; returns the StartError of each failed one.

    Frozen programs are thawed briefly meanwhile, and leave the cores to programs that still start.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    waiting, frozen = list(contestants), list[Contestant]()
    warm_at: dict[Contestant, float] = {}
    failed: dict[str, StartError] = {}
    while waiting:
        for one in list(waiting):
            try:
                if one.is_counting(deadline):
                    warm_at.setdefault(one, time.monotonic() + warm_up_s)
            except StartError as error:
                failed[one.name] = error
                waiting.remove(one)
            if time.monotonic() >= warm_at.get(one, math.inf):
                one.freeze()
                waiting.remove(one)
                frozen.append(one)
        time.sleep(POLL_S)
        for one in frozen:
            one.let_run_briefly()
    return failed


def take_turns(
    contestants: Sequence[Contestant],
    pairs: int,
    seconds: float,
    on_turn: Callable[[int, Contestant, float], None],
) -> None:
    """Give each `pairs` turns, in alternating order; `on_turn` gets pair, contestant and rate.

    All contestants are frozen before and after.
    """
    for pair in range(1, pairs + 1):
        for one in contestants if pair % 2 else reversed(contestants):
            one.resume()
            rate = measure(one, seconds)
            one.freeze()
            on_turn(pair, one, rate)
            for other in contestants:
                other.let_run_briefly(SETTLE_S + seconds + 1.2 * LOG_INTERVAL_S)  # the next turn


def measure(one: Contestant, seconds: float) -> float:
    """Env steps a second over `seconds`, after the program has settled."""
    begin = time.time() + SETTLE_S
    time.sleep(SETTLE_S + seconds)
    end = time.time()
    time.sleep(1.2 * LOG_INTERVAL_S)  # wait for the row after the end
    return one.rate(begin, end)


def compare(
    sides: tuple[Contestant, Contestant], pairs: int, seconds: float, label: str
) -> list[tuple[int, float, float]]:
    """Env steps a second of both sides, by pair; both are ended afterwards."""
    found: list[dict[str, float]] = [{} for _ in range(pairs)]

    def note(pair: int, one: Contestant, rate: float) -> None:
        found[pair - 1][one.name] = rate
        print(f"{label} pair {pair} {one.name:8} {rate:8,.0f} env steps/s", flush=True)

    try:
        for error in freeze_when_counting(sides).values():
            raise error
        take_turns(sides, pairs, seconds, note)
    finally:
        for side in sides:
            side.close()
    first, second = (side.name for side in sides)
    return [(i, one[first], one[second]) for i, one in enumerate(found, 1)]


def ratio_rows(pairs: Iterable[tuple[str, float, float]]) -> list[tuple[str, ...]]:
    """By name: both medians, the second's ratio to the first, and the range of the pairs."""
    rows: list[tuple[str, ...]] = []
    by_name: dict[str, list[tuple[float, float]]] = {}
    for name, *rates in pairs:
        by_name.setdefault(name, []).append((rates[0], rates[1]))
    for name, found in by_name.items():
        first, second = (statistics.median(side) for side in zip(*found, strict=True))
        ratios = [b / a for a, b in found]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        medians = (f"{first:,.0f}", f"{second:,.0f}", f"{second / first:.2f}")
        rows.append((name, *medians, spread))
    return rows


class StepCounter:
    """A contestant's counter: writes a row with the env steps so far at intervals."""

    def __init__(self, path: Path) -> None:
        self._sink = JsonlSink(path)
        self._due = 0.0
        self.env_steps = 0

    def add(self, env_steps: int, **more: float) -> None:
        """Add env steps, and write a row if it is due."""
        self.env_steps += env_steps
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + ROW_INTERVAL_S
            self._sink.write(self.env_steps, more)


def _rows(path: Path) -> list[tuple[float, float]]:
    """Times and env steps, oldest first; an incomplete row is left out."""
    return [(row["time"], row["env_steps"]) for row in last_rows(path, sys.maxsize)]


def rate_between(path: Path, begin: float, end: float) -> float:
    """Env steps a second from the first to the last row in between, so that rollouts are whole.

    With too few rows, env steps are interpolated linearly between rows.
    """
    rows = [row for row in _rows(path) if begin <= row[0] <= end]
    if len(rows) < MIN_ROWS:
        return steps_between(path, begin, end) / (end - begin)
    (first, before), (last, after) = rows[0], rows[-1]
    return (after - before) / (last - first)


def steps_between(path: Path, begin: float, end: float) -> float:
    """Env steps between two times, from the rows of a file."""
    times, steps = zip(*_rows(path), strict=True)
    at_begin, at_end = np.interp([begin, end], times, steps)
    return float(at_end - at_begin)
