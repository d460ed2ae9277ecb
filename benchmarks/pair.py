"""The effect of settings, or of a commit, on speed: two clusters take turns on the same cores.

    python -m benchmarks.pair --with="--compute-dtype bfloat16"
    python -m benchmarks.pair --with="TF_ENABLE_ONEDNN_OPTS=0" -- --preset pong --minibatches 1
    python -m benchmarks.pair --before HEAD~3

Flags after `--` are those of both clusters. With `--before` the first one runs an older commit, in
a checkout of its own.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.pair")

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from a3c.errors import UserError
from a3c.process import console
from a3c.run.rundir import REPOSITORY
from benchmarks import machine, turns


class Row(NamedTuple):
    """One turn of each cluster."""

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


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Take turns of both clusters."""
    where = machine.here()
    own = arguments.flags or ["--preset", "pong"]
    flags = ["--workers", str(len(os.sched_getaffinity(0))), *own]
    words = shlex.split(arguments.with_it)
    changed = [word for word in words if not is_variable(word)]
    environment = dict(word.split("=", 1) for word in words if is_variable(word))
    with turns.scratch() as folder:
        tree = _checkout(arguments.before, folder) if arguments.before else REPOSITORY
        sides = (
            turns.cluster("without", flags, folder, tree=tree),
            turns.cluster("with", [*flags, *changed], folder, environment=environment),
        )
        lever = arguments.with_it or f"since {arguments.before}"
        found = turns.compare(sides, arguments.pairs, arguments.seconds, lever)
    return [
        Row(*where, lever, " ".join(flags), i, round(a, 1), round(b, 1), round(b / a, 4))
        for i, a, b in found
    ]


def is_variable(word: str) -> bool:
    """Whether it is NAME=VALUE, for the environment."""
    return re.match("[A-Z_][A-Z0-9_]*=", word) is not None


def _checkout(commit: str, folder: Path) -> Path:
    """The tree of an older commit."""
    tree = folder / "before"
    tree.mkdir()
    git = ["git", "-C", str(REPOSITORY), "archive", commit]
    archive = subprocess.run(git, capture_output=True, check=False)
    if archive.returncode:
        raise UserError(f"--before {commit} is refused: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


def main() -> int:
    """Measure, add the rows to the table, print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--with", dest="with_it", default="", metavar="WORDS", help="flags, NAME=X")
    parser.add_argument("--before", metavar="COMMIT", help="of the cluster without them")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/pair.csv"))
    parser.add_argument("flags", nargs="*", help="after --: settings of both")
    arguments = parser.parse_args()
    if not (arguments.with_it or arguments.before):
        parser.error("there is nothing to compare: give --with or --before")
    rows = measure(arguments)
    machine.append(arguments.output, rows)
    found = turns.ratio_rows((row.lever, row.without, row.with_it) for row in rows)
    titles = ("with", "without, env steps/s", "with", "ratio of medians", "range of pairs")
    print("\n".join(machine.table(titles, found)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(console.refuse("benchmarks.pair", error))
