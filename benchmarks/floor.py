"""A cluster's speed relative to the floor: emulator and arithmetic alone.

    python -m benchmarks.floor --pairs 5 --output benchmarks/results/floor.csv

The floor is one process for each core that does only the unavoidable work for the same environment,
network, K, T, minibatches and epochs: step the emulator, act, compute gradients. It has no ps, no
returns and no metrics. Efficiency is the cluster's env steps a second divided by the floor's. There
are two shapes: the Pong preset, and the classic shape with one environment a worker and T = 20.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.floor")

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine, turns
from benchmarks.turns import Contestant

# A rollout is used once and as a whole, as in A3C.
ONE_UPDATE: tuple[str, ...] = (
    *("--minibatches", "1", "--epochs", "1", "--ratio-limit", "0"),
    *("--gae-lambda", "1", "--no-normalize-advantages"),
)

SHAPES = {
    "preset": ("--preset", "pong"),
    "classic": (
        *("--preset", "pong", "--envs-per-worker", "1"),
        *("--rollout-length", "20", *ONE_UPDATE),
    ),
}


# Seconds of a turn. A rollout of the preset takes two seconds.
TURN_S = {"preset": 12.0, "classic": 5.0}


class Row(NamedTuple):
    """A pair of turns: one of the floor, one of the cluster."""

    time: str
    commit: str
    machine: str
    load: float
    shape: str
    flags: str
    pair: int
    floor: float  # env steps/s
    cluster: float
    efficiency: float


def main() -> int:
    """Measure, write the table, print medians."""
    arguments = _arguments()
    rows: list[Row] = []
    for shape in arguments.shapes:
        rows += measure(shape, (*SHAPES[shape], *arguments.flags), arguments)
        machine.write(arguments.output, rows)
    print("\n".join(summary(rows)))
    return 0


def measure(shape: str, flags: Sequence[str], arguments: argparse.Namespace) -> list[Row]:
    """Take turns of the floor and of a cluster of one shape."""
    # The number of workers determines each one's share.
    both = ["--workers", str(len(os.sched_getaffinity(0))), *flags]
    where = machine.here()
    with turns.scratch() as folder:
        sides = (
            floor(both, turns.workers_of(both), folder),
            turns.cluster("cluster", both, folder),
        )
        seconds = arguments.seconds or TURN_S[shape]
        pairs = turns.compare(sides, arguments.pairs, seconds, shape)
    return [
        Row(*where, shape, " ".join(flags), i, round(a, 1), round(b, 1), round(b / a, 4))
        for i, a, b in pairs
    ]


def summary(rows: Sequence[Row]) -> list[str]:
    """Medians, their ratio and its spread, as a table for the docs."""
    found = turns.ratio_rows((row.shape, row.floor, row.cluster) for row in rows)
    titles = ("shape", "floor, env steps/s", "cluster", "efficiency", "range of pairs")
    return machine.table(titles, found)


# --- the floor ------------------------------------------------------------------------------------


def floor(flags: Sequence[str], processes: int, folder: Path) -> Contestant:
    """The floor's processes as one contestant."""
    counts = [folder / f"floor-{i}.jsonl" for i in range(processes)]
    program = [sys.executable, "-m", "benchmarks.floor_process"]
    commands = [[*program, str(path), *flags] for path in counts]
    return Contestant("floor", turns.side_by_side(commands), counts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of each turn (default: 12 and 5)")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=list(SHAPES))
    parser.add_argument("--output", type=Path, default=Path("runs/bench/floor.csv"))
    parser.add_argument("--smoke", action="store_true", help="one shape, once, in seconds")
    parser.add_argument("flags", nargs="*", help="after --: settings of the program to change")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.shapes, arguments.pairs, arguments.seconds = ["classic"], 1, 2.0
    return arguments


if __name__ == "__main__":
    sys.exit(main())
