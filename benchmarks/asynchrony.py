"""The study of how learning per env step depends on the number of workers.

    python -m benchmarks.asynchrony --tasks cartpole --workers 1 2 4 8 16 32 64 --seeds 101-103
    python -m benchmarks.asynchrony --workers 16 --name shortest-32 -- --shortest-rollout 32

A run is simulated (asynchrony_simulated.py, or asynchrony_in_c.py); real_clusters.py makes those of
real clusters. Its row is appended to the table when it ends. A run is skipped if the table already
has its kind, task, workers, remedy and seed, so a study can be stopped and continued at any time.
Flags after `--` go to each run; `--name` is the name of the remedy with them in the table.
asynchrony_pictures.py makes the pictures and the tables of the docs.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.asynchrony")

import argparse
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from a3c.config import Config, command_line
from a3c.errors import A3CError, UserError
from a3c.process import console
from a3c.process.startup import import_tensorflow
from benchmarks import asynchrony_in_c, machine
from benchmarks.machine import RESULTS

TABLE = RESULTS / "asynchrony.csv"
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SIMULATED, IN_C, REAL = "simulated", "simulated-in-c", "real"  # the last by real_clusters.py
FIXED = ("--preset", "--workers", "--seed", "--stop-window")  # of each run; it has 100 games
LIMITS = {  # env steps after which a run counts as not solved
    "cartpole": 400_000,
    "acrobot": 300_000,
    "memory": 200_000,
    "pendulum": 1_500_000,
    "pong": 1_500_000,
}
# Environments of each worker before workers shared the task's environments (commit 053c733).
ENVS_OF_EACH = {"cartpole": 4, "acrobot": 8, "memory": 16, "pendulum": 16, "pong": 8}


class Case(NamedTuple):
    """The key of a run: runs with equal cases are the same run."""

    kind: str
    task: str
    workers: int
    remedy: str
    seed: int


class Row(NamedTuple):
    """One run."""

    time: str
    commit: str
    machine: str
    load: float
    task: str
    workers: int
    remedy: str
    kind: str
    seed: int
    solved: bool
    env_steps: int
    staleness: float  # mean optimizer steps between a gradient's weights and its push
    updates: int
    wall_s: float
    cpu_s: float  # of all processes; without TensorFlow's import if simulated
    collapsed: bool
    flags: str


class Learned(NamedTuple):
    """The result of a run."""

    solved: bool
    env_steps: int
    staleness: float
    updates: int
    wall_s: float
    cpu_s: float
    collapsed: bool


# --- remedies -------------------------------------------------------------------------------------


def preset(task: str, workers: int = 1) -> Config:
    """The configuration of a task's preset."""
    return command_line.merge([command_line.read_preset(task), {"workers": workers}])


def remedy_flags(remedy: str, task: str, workers: int) -> list[str]:
    """The flags of a remedy: its differences from the preset."""
    config = preset(task, workers)
    if remedy == "not-predicted":
        return ["--no-predict-weights"]
    if remedy == "shared-not-gathered":
        return ["--samples-per-step=0", f"--minibatches={config.share.minibatches}"]
    envs, step = ENVS_OF_EACH[task], preset(task).samples_per_step
    parts = max(1, envs * config.learning.rollout_length // step)
    unshared = [f"--envs-per-worker={envs}", f"--minibatches={parts}"]
    if remedy == "gathered-not-shared":
        return [*unshared, f"--samples-per-step={step * max(1, workers // 2)}"]
    if remedy == "every-push-a-step":
        return [*unshared, "--samples-per-step=0"]
    return []


REMEDIES = {
    "shared": "the preset: workers share the environments, the ps gathers pushes, and gradients "
    "are of the weights expected one step later",
    "not-predicted": "the preset, but gradients are of the newest weights",
    "every-push-a-step": "the preset's rollout for each worker, every push an optimizer step",
    "shared-not-gathered": "workers share the environments, every push an optimizer step",
    "gathered-not-shared": "the preset's rollout for each worker, half as many pushes a step as "
    "workers",
}


# --- runs -----------------------------------------------------------------------------------------


def run_simulated(case: Case, flags: Sequence[str]) -> Learned:
    """Make one simulated run in this process."""
    from benchmarks.asynchrony_simulated import simulated

    outcome = simulated([*_named(case), *flags])
    return Learned(**{name: getattr(outcome, name) for name in Learned._fields})


def run_in_c(case: Case, flags: Sequence[str]) -> Learned:
    """Make one run simulated in C."""
    made = asynchrony_in_c.simulated([*_named(case), *flags])
    return Learned(**{name: made[name] for name in Learned._fields})


def import_simulation() -> None:
    """Import TensorFlow once for all simulated runs, which are forks of this process."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise each run prints a greeting
    import_tensorflow()
    importlib.import_module("benchmarks.asynchrony_simulated")


def _named(case: Case) -> list[str]:
    return [f"--preset={case.task}", f"--workers={case.workers}", f"--seed={case.seed}"]


RUN = {SIMULATED: run_simulated, IN_C: run_in_c}


def make(case: Case, flags: Sequence[str]) -> Row:
    """Make one run; returns its row."""
    where = machine.here()
    flags = [*remedy_flags(case.remedy, case.task, case.workers), *flags]
    learned = RUN[case.kind](case, [f"--max-env-steps={LIMITS[case.task]}", *flags])
    parts = (where, case, learned)
    named = {name: value for part in parts for name, value in part._asdict().items()}
    return Row(**named, flags=" ".join(flags))


def _make_and_send(case: Case, flags: Sequence[str], to: Connection) -> None:
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    try:
        to.send(make(case, flags))
    except UserError as error:
        to.send(error)


def make_all(cases: Sequence[Case], flags: Sequence[str], at_once: int) -> Iterator[Row | Case]:
    """The rows of runs as they end, a process for each run; the case instead if a run failed.

    Raises the UserError of a run, and ends the others.
    """
    waiting = list(reversed(cases))
    running: dict[Connection, tuple[Case, multiprocessing.Process]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                case = waiting.pop()
                mine, its = multiprocessing.Pipe(duplex=False)
                process = multiprocessing.Process(target=_make_and_send, args=(case, flags, its))
                # A handler that runs in one of Python's fork hooks loses its SystemExit.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                process.start()
                running[mine] = (case, process)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
                its.close()
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                case, process = running[pipe]
                try:
                    made = pipe.recv()
                except EOFError:
                    made = case
                if isinstance(made, UserError):
                    raise made
                yield made
                process.join()
                del running[pipe]
                pipe.close()
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def read(path: Path) -> list[Row]:
    """The rows of a table; none if the file doesn't exist."""
    return machine.read_as(path, Row) if path.exists() else []


class Run(Protocol):
    """A row, or a summary of rows."""

    @property
    def kind(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def remedy(self) -> str: ...


AnyRun = TypeVar("AnyRun", bound=Run)


def prefer_c(found: Iterable[AnyRun]) -> list[AnyRun]:
    """Drop runs simulated in Python whose task and remedy C has simulated too, with more seeds."""
    found = list(found)
    in_c = {(one.task, one.remedy) for one in found if one.kind == IN_C}
    return [one for one in found if one.kind != SIMULATED or (one.task, one.remedy) not in in_c]


def missing(cases: Iterable[Case], rows: Iterable[Row]) -> list[Case]:
    """The cases that aren't in the table."""
    made = {Case(row.kind, row.task, row.workers, row.remedy, row.seed) for row in rows}
    return [case for case in cases if case not in made]


# --- the command line -----------------------------------------------------------------------------


def seeds_of(text: str) -> list[int]:
    """Seeds from `7` or `1-10`."""
    first, dash, last = text.partition("-")
    try:
        seeds = list(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        seeds = []
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} names no seeds: give 7 or 1-10")
    return seeds


def positive(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "benchmarks.asynchrony", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    every = tuple(RUN)
    parser.add_argument("--kind", nargs="+", choices=every, default=[SIMULATED])
    parser.add_argument("--tasks", nargs="+", choices=LIMITS, default=["cartpole"])
    parser.add_argument("--workers", nargs="+", type=positive, default=WORKERS, metavar="N")
    parser.add_argument("--only", nargs="+", choices=REMEDIES, default=["shared"], dest="remedies")
    parser.add_argument("--seeds", nargs="+", type=seeds_of, default=[[101, 102, 103]])
    parser.add_argument("--at-once", type=positive, default=1, metavar="N", help="runs at a time")
    parser.add_argument("--name", help="what the table calls the remedy with the flags after --")
    parser.add_argument("--output", type=Path, default=TABLE)
    parser.add_argument("flags", nargs="*", help="for every run, after --")
    arguments = parser.parse_args(argv)
    if bool(arguments.flags) != bool(arguments.name):
        parser.error("--name and flags after -- go together")
    for flag in arguments.flags:
        if flag.partition("=")[0] in FIXED:
            parser.error(f"{flag} after --: each run has its own")
    if arguments.name in REMEDIES:
        parser.error(f"--name {arguments.name} is a remedy's own name: choose another")
    if arguments.name and arguments.remedies != ["shared"]:
        parser.error("flags after -- change the preset: leave --only out")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that the table lacks; returns 1 if one of them failed."""
    arguments = parse(argv)
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    cases = [
        Case(kind, task, workers, arguments.name or remedy, seed)
        for task in arguments.tasks
        for kind in arguments.kind
        for remedy in arguments.remedies
        for seeds in arguments.seeds
        for seed in seeds
        for workers in arguments.workers
    ]
    left = missing(cases, read(arguments.output))
    print(f"{len(cases)} runs, of which {len(cases) - len(left)} are in {arguments.output}")
    if any(case.kind == SIMULATED for case in left):
        import_simulation()
    if any(case.kind == IN_C for case in left):
        asynchrony_in_c.program()  # so that runs at the same time don't each compile it
    failed = False
    for made in make_all(left, arguments.flags, arguments.at_once):
        print(time.strftime("%H:%M:%S"), _line(made), flush=True)
        if isinstance(made, Row):
            machine.append(arguments.output, [made])
        failed |= isinstance(made, Case)
    return int(failed)


def _line(made: Row | Case) -> str:
    """A line to print about one run."""
    text = f"{made.kind} {made.task} {made.workers} workers {made.remedy} seed {made.seed}: "
    if isinstance(made, Case):
        return text + "failed, see above"
    end = "solved" if made.solved else "not solved"
    collapsed = ", collapsed" if made.collapsed else ""
    return (
        f"{text}{end} after {made.env_steps:,} env steps, staleness {made.staleness}, "
        f"{made.wall_s:.0f} s{collapsed}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except A3CError as error:
        sys.exit(console.refuse("benchmarks.asynchrony", error))
