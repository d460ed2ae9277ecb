"""What each lever is worth: clusters with and without it in turns on the same cores.

    python -m benchmarks.levers --pairs 5 --output benchmarks/results/levers.csv

`history` compares this commit with one from before the work on speed (`--before`), in a checkout of
its own; the others switch one setting or environment variable.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a3c.rundir import REPOSITORY
from benchmarks import machine, turns
from benchmarks.floor import ONE_UPDATE

BEFORE = "86f6dec"

_PAPER = ("--preset", "pong", "--preprocessing", "atari", "--network", "a3c-ff")
_SHAPE = ("--frame-stack", "4", "--envs-per-worker", "16", "--rollout-length", "20")
_NEW = ("--no-normalize-observations", *ONE_UPDATE)
_JIT = (("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"),)


class Lever(NamedTuple):
    """Two clusters that differ in one thing."""

    without: tuple[str, ...]
    with_it: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()  # of the one with it
    from_before: bool = False  # the one without is an older commit


_SMALL = (*_PAPER, *_NEW, "--envs-per-worker", "1", "--rollout-length", "20")
_LARGE = (*_PAPER, *_SHAPE, *_NEW)

LEVERS = {
    "history": Lever((*_PAPER, *_SHAPE), _LARGE, from_before=True),
    "history-classic": Lever(
        (*_PAPER, "--envs-per-worker", "1", "--rollout-length", "20"), _SMALL, from_before=True
    ),
    "float16": Lever(_SMALL, (*_SMALL, "--wire-dtype", "float16")),
    "overlap": Lever(_SMALL, (*_SMALL, "--overlap")),
    "two-threads": Lever(_LARGE, (*_LARGE, "--worker-threads", "2")),
    "onednn-off": Lever(_LARGE, _LARGE, (("TF_ENABLE_ONEDNN_OPTS", "0"),)),
    "bfloat16": Lever(_LARGE, (*_LARGE, "--compute-dtype", "bfloat16")),
    "xla": Lever(_LARGE, _LARGE, _JIT),
}


class Row(NamedTuple):
    """One turn of each."""

    time: str
    commit: str
    machine: str
    load: float
    lever: str
    flags: str
    pair: int
    without: float  # env steps/s
    with_it: float
    ratio: float


def measure(name: str, arguments: argparse.Namespace) -> list[Row]:
    """Turns of both sides of one lever."""
    lever, where = LEVERS[name], machine.here()
    workers = ["--workers", str(os.cpu_count() or 1)]
    with turns.scratch() as folder:
        tree = _checkout(arguments.before, folder) if lever.from_before else REPOSITORY
        sides = (
            turns.cluster("without", [*lever.without, *workers], folder, tree=tree),
            turns.cluster(
                "with", [*lever.with_it, *workers], folder, environment=dict(lever.environment)
            ),
        )
        pairs = turns.compare(sides, arguments.pairs, arguments.seconds, name)
    words = " ".join([*lever.with_it, *(f"{k}={v}" for k, v in lever.environment)])
    return [
        Row(*where, name, words, i, round(a, 1), round(b, 1), round(b / a, 4)) for i, a, b in pairs
    ]


def _checkout(commit: str, folder: Path) -> Path:
    """The tree of an older commit."""
    tree = folder / "before"
    tree.mkdir()
    git = ["git", "-C", str(REPOSITORY), "archive", commit]
    with subprocess.Popen(git, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    return tree


def summary(rows: Sequence[Row]) -> list[str]:
    """Medians and spread, as a table for the docs."""
    found = [
        turns.ratio_row(name, [(row.without, row.with_it) for row in rows if row.lever == name])
        for name in dict.fromkeys(row.lever for row in rows)
    ]
    titles = ("lever", "without, env steps/s", "with", "ratio of medians", "range of pairs")
    return machine.table(titles, found)


def main() -> int:
    """Measure the levers that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn")
    parser.add_argument("--only", nargs="+", choices=sorted(LEVERS), default=list(LEVERS))
    parser.add_argument("--before", default=BEFORE, help="the commit that `history` starts from")
    parser.add_argument("--smoke", action="store_true", help="one lever, once, in seconds")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/levers.csv"))
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.only, arguments.pairs, arguments.seconds = ["float16"], 1, 2.0
    rows: list[Row] = []
    for name in arguments.only:
        rows += measure(name, arguments)
        machine.write(arguments.output, rows)
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
