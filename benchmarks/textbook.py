"""Classic A3C as TensorFlow's cluster guide suggests, compared with this implementation.

    python -m benchmarks.textbook --pairs 5 --output benchmarks/results/textbook.csv

One environment a worker, 20 steps a rollout, an update a rollout, a worker a core and one ps; the
same network, environment and loss. `textbook_process.py` is built like published A3C programs for
TensorFlow: all computations of a worker go through a session of the cluster. The two take turns.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.textbook")

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a3c.cluster.topology import free_ports
from benchmarks import machine, turns
from benchmarks.floor import SHAPES
from benchmarks.turns import Contestant

# The textbook program has no observation statistics.
_CLASSIC = (*SHAPES["classic"], "--no-normalize-observations")
NETWORKS = {
    "preset": _CLASSIC,
    "paper": (*_CLASSIC, "--preprocessing", "atari", "--frame-stack", "4", "--network", "a3c-ff"),
}

_PROGRAM = (sys.executable, "-m", "benchmarks.textbook_process")


class Row(NamedTuple):
    """A pair of turns, one of each program."""

    time: str
    commit: str
    machine: str
    load: float
    network: str
    flags: str
    pair: int
    textbook: float  # env steps/s
    cluster: float
    ratio: float


def main() -> int:
    """Measure, write the table, print medians."""
    arguments = _arguments()
    rows: list[Row] = []
    for network in arguments.networks:
        rows += measure(network, arguments)
        machine.write(arguments.output, rows)
    print("\n".join(summary(rows)))
    return 0


def measure(network: str, arguments: argparse.Namespace) -> list[Row]:
    """Take turns of both with one network."""
    where, flags, workers = machine.here(), NETWORKS[network], os.cpu_count() or 1
    with turns.scratch() as folder:
        sides = (
            textbook(flags, workers, folder),
            turns.cluster("cluster", [*flags, "--workers", str(workers)], folder),
        )
        pairs = turns.compare(sides, arguments.pairs, arguments.seconds, network)
    return [
        Row(*where, network, " ".join(flags), i, round(a, 1), round(b, 1), round(b / a, 4))
        for i, a, b in pairs
    ]


def textbook(flags: Sequence[str], workers: int, folder: Path) -> Contestant:
    """A ps and its workers."""
    counts = [folder / f"textbook-{i}.jsonl" for i in range(workers)]
    ps, *others = (f"127.0.0.1:{port}" for port in free_ports(1 + workers))
    tasks = [("ps", "0"), *((str(path), str(i)) for i, path in enumerate(counts))]
    commands = [[*_PROGRAM, what, task, ps, ",".join(others), *flags] for what, task in tasks]
    return Contestant("textbook", turns.side_by_side(commands), counts)


def summary(rows: Sequence[Row]) -> list[str]:
    """Medians, their ratio and its spread, as a table for the docs."""
    found = turns.ratio_rows((row.network, row.textbook, row.cluster) for row in rows)
    titles = ("network", "textbook, env steps/s", "cluster", "ratio of medians", "range of pairs")
    return machine.table(titles, found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--networks", nargs="+", choices=sorted(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--output", type=Path, default=Path("runs/bench/textbook.csv"))
    parser.add_argument("--smoke", action="store_true", help="one network, once, in seconds")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.networks, arguments.pairs, arguments.seconds = ["preset"], 1, 2.0
    return arguments


if __name__ == "__main__":
    sys.exit(main())
