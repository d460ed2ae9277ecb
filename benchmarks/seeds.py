"""Train one preset with several seeds, and write the results to a CSV file.

    python -m benchmarks.seeds --preset cartpole --seeds 10 --output benchmarks/results/cartpole.csv
    python -m benchmarks.seeds --preset cartpole --seeds 20 --second-games 100 --output solved.csv

Each run uses the launcher in child mode. Compare env steps; seconds depend on the machine's load.
`evaluation_*` are the games that confirmed that the run was solved. With `--second-games` its last
checkpoint plays this many more games, with other seeds. Further arguments go to the launcher.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.seeds")

import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from a3c.run import rundir
from a3c.run.rundir import REPOSITORY
from benchmarks import machine

FIELDS = ("seed", "solved", "env_steps", "wall_s", "env_steps_per_s", "mean_return_100", "episodes")
SCORES = ("episodes", "mean", "stderr", "min")
FIRST, SECOND = ([f"{kind}_{name}" for name in SCORES] for kind in ("evaluation", "second"))
OTHER_SEEDS = 1_000_000  # above those of the runs


def main() -> int:
    """Run every seed, one after the other; returns 0 if all of them were solved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", required=True)
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from the first on")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--second-games", type=int, default=0, metavar="N")
    parser.add_argument("--output", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    rows = []
    commit = rundir.git_commit()  # of the running code; the working tree may change during the runs
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        rows.append(run(arguments.preset, seed, arguments.workers, arguments.second_games, rest))
        print(rows[-1], flush=True)
        write(arguments.output, rows, commit, arguments, rest)
    steps = [row["env_steps"] for row in rows]
    solved = sum(row["solved"] for row in rows)
    print(f"{solved} of {len(rows)} solved; median {statistics.median(steps):,.0f} env steps")
    return 0 if solved == len(rows) else 1


def run(preset: str, seed: int, workers: int, second_games: int, rest: list[str]) -> dict[str, Any]:
    """One run from scratch; returns its row."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "--mode", "child"]
        command += ["--preset", preset, "--seed", str(seed), "--workers", str(workers)]
        command += ["--run-dir", str(path), *rest]
        machine.launch(command)
        summary = json.loads((path / "summary.json").read_text())
        row = {"seed": seed} | {name: summary[name] for name in FIELDS[1:]}
        row |= dict(zip(FIRST, scores(summary["evaluation"]), strict=True))
        second = evaluate(path, OTHER_SEEDS + seed, second_games) if second_games else None
        return row | dict(zip(SECOND, scores(second), strict=True))


def evaluate(path: Path, seed: int, games: int) -> dict[str, Any]:
    """Play new games with a run's last checkpoint; they had no part in its selection."""
    command = [sys.executable, str(REPOSITORY / "evaluate.py"), str(path), "--json"]
    command += ["--episodes", str(games), "--seed", str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def scores(evaluation: dict[str, Any] | None) -> list[Any]:
    """The cells of one evaluation; empty if there is none."""
    return [evaluation[name] if evaluation else "" for name in SCORES]


def write(
    path: Path, rows: list[dict[str, Any]], commit: str | None, arguments: Any, rest: list[str]
) -> None:
    """Write the CSV, with its origin in comment lines on top."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [f"--preset {arguments.preset}", f"--workers {arguments.workers}", *rest]
    with path.open("w", newline="") as file:
        file.write(f"# launch_cluster.py --mode child {' '.join(words)}\n")
        file.write(f"# commit {commit}, {os.cpu_count()} cores, shared machine\n")
        writer = csv.DictWriter(file, (*FIELDS, *FIRST, *SECOND))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
