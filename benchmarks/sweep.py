"""How fast settings learn Pong: the mean return at regular env steps, a row for each mark.

    python -m benchmarks.sweep --output benchmarks/results/sweep.csv
    python -m benchmarks.sweep --only chosen large-updates --seeds 2 --workers 2

Each setting is the Pong preset with a change. The measure is env steps, not seconds, so settings
may run at the same time (`--at-once`) and on a busy machine. Rows are appended as runs end; runs
that are already in the table are skipped.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.sweep")

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from a3c.run.rows import read_rows
from benchmarks import machine
from benchmarks.floor import ONE_UPDATE

MARK = 50_000  # env steps
PS_TIMEOUT_S = 600  # a run may be frozen for a while during other measurements

_PAPER = ("--preprocessing", "atari", "--network", "a3c-ff", "--no-normalize-observations")
_CONSTANT = ("--learning-rate-schedule", "constant", "--entropy-weight-final", "0.01")
_CLASSIC = (
    *("--network", "universe", "--frame-stack", "1", "--envs-per-worker", "1", "--actions"),
    *("--rollout-length", "20", *ONE_UPDATE, *_CONSTANT, "--max-gradient-norm", "40"),
)
_ONCE = ("--envs-per-worker", "8", "--rollout-length", "20", *ONE_UPDATE, "--minibatches", "4")

SETTINGS: dict[str, tuple[str, ...]] = {
    "chosen": (),
    "one-epoch": ("--epochs", "1"),
    "two-epochs": ("--epochs", "2"),
    "four-epochs": ("--epochs", "4"),
    "more-environments": ("--rollout-length", "64", "--envs-per-worker", "16"),
    "64-samples": ("--minibatches", "16"),
    "256-samples": ("--minibatches", "4"),
    "ratio-limit-0.1": ("--ratio-limit", "0.1"),
    "advantages-as-they-are": ("--no-normalize-advantages",),
    "slower": ("--learning-rate", "2.5e-4"),
    "faster": ("--learning-rate", "1e-3"),
    "constant-rate": _CONSTANT,
    "lambda-1": ("--gae-lambda", "1"),
    "less-entropy": ("--entropy-weight", "0.003"),
    "all-actions": ("--actions",),
    "not-normalised": ("--no-normalize-observations",),
    "rmsprop": ("--optimizer", "rmsprop", "--rmsprop-epsilon", "1e-5"),
    "float16": ("--wire-dtype", "float16"),
    "paper-network": _PAPER,
    "learned-from-once": (*_ONCE, "--learning-rate", "7e-4", "--max-gradient-norm", "2"),
    "classic-recipe": (*_CLASSIC, "--learning-rate", "1e-4"),
}


class Row(NamedTuple):
    """The mean return of the last 100 games at one mark of one run."""

    time: str
    commit: str
    machine: str
    load: float
    setting: str
    flags: str
    workers: int
    seed: int
    env_steps: int
    wall_s: float
    mean_return_100: float


def run(name: str, seed: int, arguments: argparse.Namespace) -> list[Row]:
    """Train with one setting through the launcher; returns the rows of its marks."""
    where, began = machine.here(), time.monotonic()
    flags = ["--workers", str(arguments.workers), *SETTINGS[name]]
    with tempfile.TemporaryDirectory(prefix="a3c-sweep-") as folder:
        command = [sys.executable, "launch_cluster.py", "--preset", "pong", "--mode", "child"]
        command += ["--seed", str(seed), "--max-env-steps", str(arguments.max_env_steps), *flags]
        command += ["--evaluation-episodes", "0", "--run-dir", f"{folder}/run"]
        command += ["--ps-timeout", str(PS_TIMEOUT_S)]
        machine.launch(command)
        found = curve(Path(folder) / "run")
    last = f"{found[-1][2]:.1f} after {found[-1][0]:,} env steps" if found else "no game ended"
    print(f"{name} seed {seed}: {last}, {time.monotonic() - began:,.0f} s", flush=True)
    return [
        Row(*where, name, " ".join(SETTINGS[name]), arguments.workers, seed, *point)
        for point in found
    ]


def curve(directory: Path) -> list[tuple[int, float, float]]:
    """Env steps, seconds and mean return of a run at every mark, and at its end."""
    rows = [
        row
        for row in read_rows(directory / "metrics" / "worker-0.jsonl")
        if row.get("cluster/mean_return_100") is not None
    ]
    at_marks = [
        row
        for before, row in zip([None, *rows], rows, strict=False)
        if before is None or row["env_steps"] // MARK > before["env_steps"] // MARK
    ]
    return [
        (row["env_steps"], round(row["wall_s"], 1), round(row["cluster/mean_return_100"], 2))
        for row in [*at_marks, *rows[-1:]]
    ]


def summary(rows: Sequence[dict[str, str]]) -> list[str]:
    """When each run passed -20 and -15, and its final mean, as a table for the docs."""
    found = []
    for key in dict.fromkeys((row["setting"], row["seed"], row["flags"]) for row in rows):
        mine = [r for r in rows if (r["setting"], r["seed"], r["flags"]) == key]
        over = [
            next(
                (f"{int(r['env_steps']):,}" for r in mine if float(r["mean_return_100"]) >= goal),
                "",
            )
            for goal in (-19, -10, 10)
        ]
        end = f"{float(mine[-1]['mean_return_100']):.1f} at {int(mine[-1]['env_steps']):,}"
        found.append((key[0], key[1], *over, end, f"`{key[2]}`"))
    titles = ("setting", "seed", "over -19 at", "over -10 at", "over 10 at", "end", "")
    return machine.table(titles, found)


def main() -> int:
    """Make the runs that aren't in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--only", nargs="+", choices=sorted(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    parser.add_argument("--max-env-steps", type=int, default=400_000)
    parser.add_argument("--output", type=Path, default=Path("runs/bench/sweep.csv"))
    arguments = parser.parse_args()
    path = arguments.output
    known = machine.read(path) if path.exists() else []
    made = {(row["setting"], int(row["seed"]), int(row["workers"])) for row in known}
    wanted = [(name, seed) for seed in range(1, 1 + arguments.seeds) for name in arguments.only]
    missing = [(n, s) for n, s in wanted if (n, s, arguments.workers) not in made]
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        try:
            for rows in pool.map(lambda one: run(one[0], one[1], arguments), missing):
                machine.append(path, rows)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for launcher in psutil.Process().children():  # their own children end with them
                with suppress(psutil.NoSuchProcess):
                    launcher.terminate()
            raise
    print("\n".join(summary(machine.read(path))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
