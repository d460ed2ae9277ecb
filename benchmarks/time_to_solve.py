"""Train Pong until the mean of the last 100 whole games is 18: ours and its peers in turns.

    python -m benchmarks.time_to_solve --seeds 3 --output benchmarks/results/time-to-solve.csv

Every program uses its published settings. A row is appended for each run that has ended, and runs
with a row are skipped, so the benchmark can be run in parts. Curves are kept next to the rows. Wall
time counts from Enter. Run it on an otherwise idle machine.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.time_to_solve")

import argparse
import csv
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from a3c.run.rows import read_rows
from a3c.run.rundir import REPOSITORY, RunDir
from benchmarks import machine
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, Settings
from benchmarks.peers.measure import launcher_command, our_versions
from benchmarks.peers.programs.progress import CURVE, RESULT, WINDOW
from benchmarks.peers.rows import pack

POLL_S = 1.0
GRACE_S = 60.0  # for a program to notice that its time is over


class Contestant(NamedTuple):
    """A program with its settings; ours uses `flags` instead of `settings`."""

    name: str
    venv: str = ""
    program: str = ""
    settings: Settings = {}  # noqa: RUF012 - never changed
    flags: tuple[str, ...] = ()


CONTESTANTS = (
    Contestant(OURS),
    Contestant(
        "sb3-a2c", "sb3", "sb3_pong", {"algorithm": "a2c", "threads": 1, "vec_env": "subproc"}
    ),
    Contestant(
        "sb3-ppo", "sb3", "sb3_pong", {"algorithm": "ppo", "threads": 2, "vec_env": "subproc"}
    ),
    Contestant("cleanrl-ppo", "cleanrl", "cleanrl_pong", {"threads": 2, "vec_env": "envpool"}),
    Contestant("sample-factory", "sample-factory", "sample_factory_pong"),
    Contestant("rllib-impala", "rllib", "rllib_pong", {"runners": 2}),
    Contestant("pytorch-a3c", "pytorch-a3c", "pytorch_a3c_pong", {"processes": 16}),
)


class Solved(NamedTuple):
    """One run, solved or not."""

    time: str
    commit: str
    machine: str
    load: float  # before the run began
    program: str
    versions: str
    settings: str
    seed: int
    solved: bool
    wall_s: float
    cpu_s: float
    env_steps: int
    games: int
    mean_return_100: float
    note: str


def main() -> int:
    """Make the runs that have no row yet, seed by seed; then summarise."""
    arguments = parse()
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    done = read(arguments.output)
    for seed, contestant in left_to_do(arguments, done):
        if contestant.venv:
            venvs.make(contestant.venv, arguments.venvs)
        row = run(contestant, seed, arguments)
        machine.append(arguments.output, [row])
        done.append(row)
        print(f"{row.program} seed {seed}: {row.note}, {row.wall_s:,.0f} s", flush=True)
    print("\n".join(summary(done)))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "benchmarks.time_to_solve", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    parser.add_argument("--max-minutes", type=float, default=180.0, help="of each run")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/time-to-solve.csv"))
    add_common(parser)
    return parser.parse_args()


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that a race has too: the programs and the goal."""
    parser.add_argument("--only", nargs="+", choices=[one.name for one in CONTESTANTS])
    parser.add_argument("--goal", type=float, default=18.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of ours")
    parser.add_argument("--venvs", type=Path, default=Path("runs/peers"))
    parser.add_argument("flags", nargs="*", help="after --: settings of ours to change")


def left_to_do(
    arguments: argparse.Namespace, done: Sequence[Solved]
) -> Iterator[tuple[int, Contestant]]:
    """The remaining runs: programs in turns, each seed once."""
    have = {(row.program, row.seed) for row in done}
    for seed in range(1, arguments.seeds + 1):
        for contestant in CONTESTANTS:
            wanted = not arguments.only or contestant.name in arguments.only
            if wanted and (contestant.name, seed) not in have:
                yield seed, contestant


# --- one run --------------------------------------------------------------------------------------


def run(contestant: Contestant, seed: int, arguments: argparse.Namespace) -> Solved:
    """Train until the game is solved or the time is over."""
    where = machine.here()
    curve = curve_path(arguments.output, contestant.name, seed)
    cpu_s, settings = children_cpu_s(), contestant.settings
    if contestant.program:
        versions, note = run_peer(contestant, seed, curve, arguments)
    else:
        settings = {"preset": "pong", "workers": arguments.workers, "flags": arguments.flags}
        versions, note = run_ours(seed, curve, arguments)
    end = last_row(curve)
    solved, mean = reached(end, arguments.goal)
    return Solved(
        *where,
        contestant.name,
        versions,
        pack(settings),
        seed,
        solved,
        float(end["wall_s"]),
        round(children_cpu_s() - cpu_s, 1),
        int(end["env_steps"]),
        int(end["games"]),
        mean,
        "solved" if solved else note,
    )


def run_peer(
    contestant: Contestant, seed: int, curve: Path, arguments: argparse.Namespace
) -> tuple[str, str]:
    """Run a peer's program in its own virtual environment; its versions, and how it ended."""
    max_s = 60 * arguments.max_minutes
    command = peer_command(contestant, seed, curve.absolute(), time.time(), max_s, arguments)
    with tempfile.TemporaryFile("w+") as output:
        keywords = {"stdout": output, "stderr": subprocess.STDOUT}
        with suppress(subprocess.TimeoutExpired), group(command, **keywords) as process:
            process.wait(max_s + GRACE_S)
        output.seek(0)
        said = [line for line in output.read().splitlines() if line.strip()]
    for line in said:
        if line.startswith(RESULT):
            return json.loads(line.removeprefix(RESULT))["versions"], "out of time"
    return "", f"failed: {said[-1][:200] if said else 'it said nothing'}"


def peer_command(
    contestant: Contestant,
    seed: int,
    curve: Path,
    began: float,
    max_s: float,
    arguments: argparse.Namespace,
) -> list[str]:
    """The command of a peer's program, which writes `curve`."""
    module = f"benchmarks.peers.programs.{contestant.program}"
    command = [str(venvs.python(contestant.venv, arguments.venvs)), "-m", module]
    command += ["--settings", pack(contestant.settings), "--seed", str(seed)]
    command += ["--curve", str(curve), "--began", str(began)]
    return [*command, "--goal", str(arguments.goal), "--max-s", str(max_s)]


def our_command(run: RunDir, seed: int, arguments: argparse.Namespace) -> list[str]:
    """The command of a cluster of ours that trains until it is solved."""
    settings = {"workers": arguments.workers, "seed": seed, "stop_at_return": arguments.goal}
    return launcher_command(run, settings)


@contextmanager
def group(command: Sequence[str], **keywords: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own; all its processes are ended on exit."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, start_new_session=True, text=True, **keywords
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_ours(seed: int, curve: Path, arguments: argparse.Namespace) -> tuple[str, str]:
    """Run a cluster through the launcher; its own metrics give the curve."""
    began = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        directory = RunDir(Path(scratch) / "run")
        command = [*our_command(directory, seed, arguments), *arguments.flags]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=REPOSITORY) as launcher:
            deadline = began + 60 * arguments.max_minutes
            try:
                while launcher.poll() is None and time.time() < deadline:
                    time.sleep(POLL_S)
            finally:
                launcher.send_signal(signal.SIGINT)
        write_curve(curve, our_curve(directory, began))
        note = "out of time" if time.time() >= deadline else f"failed: exit {launcher.returncode}"
        return our_versions(directory), note


def our_curve(run: RunDir, began: float) -> list[tuple[Any, ...]]:
    """The curve so far of a run of ours."""
    path = run.metrics("worker-0")
    rows = read_rows(path) if path.exists() else []
    return [*curve_of(rows, began), *solved_row(run, rows, began)]


def curve_of(rows: Sequence[Mapping[str, Any]], began: float) -> list[tuple[Any, ...]]:
    """The curve from the chief's rows."""
    return [
        (
            round(row["time"] - began, 1),
            row["env_steps"],
            row["cluster/episodes"],
            round(row["cluster/mean_return_100"], 2) if "cluster/mean_return_100" in row else "",
        )
        for row in rows
        if "cluster/episodes" in row
    ]


def solved_row(
    run: RunDir, rows: Sequence[Mapping[str, Any]], began: float
) -> list[tuple[Any, ...]]:
    """The final point of a solved run, at the time of its summary."""
    if not run.summary.exists() or not (found := json.loads(run.summary.read_text()))["solved"]:
        return []
    games = max((row.get("cluster/episodes", 0) for row in rows), default=0)
    wall_s = round(run.summary.stat().st_mtime - began, 1)
    return [(wall_s, found["env_steps"], games, round(found["mean_return_100"], 2))]


def children_cpu_s() -> float:
    """User and system time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# --- files ----------------------------------------------------------------------------------------


def curve_path(output: Path, program: str, seed: int) -> Path:
    """The path of a run's curve."""
    return output.with_name(f"{output.stem}-curves") / f"{program}-{seed}.csv"


def write_curve(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write a curve in the format of the peers' programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([CURVE, *rows])


def last_row(curve: Path) -> dict[str, str]:
    """The last row of a curve; zeros if it has no rows."""
    rows: list[dict[str, str]] = []
    if curve.exists():
        with curve.open(newline="") as file:
            rows = list(csv.DictReader(file))
    return rows[-1] if rows else dict.fromkeys(CURVE[:3], "0") | {"mean_return_100": ""}


def reached(end: Mapping[str, str], goal: float) -> tuple[bool, float]:
    """Whether a curve with this last row has solved the game, and its mean."""
    mean = float(end["mean_return_100"] or "nan")
    return mean >= goal and int(end["games"]) >= WINDOW, mean


def read(path: Path) -> list[Solved]:
    """The rows so far."""
    return [typed(row) for row in machine.read(path)] if path.exists() else []


def typed(row: Mapping[str, str]) -> Solved:
    """A row of the file, with its numbers converted from text."""
    numbers = {name: float(row[name]) for name in ("load", "wall_s", "cpu_s", "mean_return_100")}
    counts = {name: int(row[name]) for name in ("seed", "env_steps", "games")}
    return Solved(**{**row, **numbers, **counts, "solved": row["solved"] == "True"})  # type: ignore[arg-type]


def summary(rows: Sequence[Solved]) -> list[str]:
    """Medians over seeds, as a table for the docs."""
    found = []
    for name in dict.fromkeys(row.program for row in rows):
        mine = [row for row in rows if row.program == name]
        wall, cpu, steps = (
            statistics.median(getattr(row, field) for row in mine)
            for field in ("wall_s", "cpu_s", "env_steps")
        )
        solved = f"{sum(row.solved for row in mine)} of {len(mine)}"
        times = (f"{wall / 60:,.1f} min", f"{cpu / 60:,.1f} min")
        found.append((name, solved, *times, f"{steps:,.0f}"))
    return machine.table(("program", "solved", "wall time", "CPU time", "env steps"), found)


if __name__ == "__main__":
    sys.exit(main())
