"""The effect of each speed lever: clusters with and without it take turns on the same cores.

    python -m benchmarks.levers --pairs 5 --output benchmarks/results/levers.csv

`history` compares this commit with one from before the work on speed (`--before`), in a checkout of
its own. The other levers switch one setting or environment variable. All clusters of one shape are
alive at the same time (eight gigabytes of memory); a baseline that several levers share plays only
once.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.levers")

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from a3c.run.rundir import REPOSITORY
from benchmarks import machine, turns
from benchmarks.floor import ONE_UPDATE
from benchmarks.turns import Contestant

BEFORE = "86f6dec"

_PAPER = ("--preset", "pong", "--preprocessing", "atari", "--network", "a3c-ff")
_SHAPE = ("--frame-stack", "4", "--envs-per-worker", "8", "--rollout-length", "20")
_NEW = ("--no-normalize-observations", *ONE_UPDATE)
_JIT = (("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"),)


class Side(NamedTuple):
    """One cluster of a comparison."""

    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    from_before: bool = False  # runs the older commit


class Lever(NamedTuple):
    """Two clusters that differ in one thing."""

    without: Side
    with_it: Side

    @property
    def shape(self) -> str:
        """The shape; levers of one shape share clusters, so they are measured together."""
        classic = self.with_it.flags[: len(_SMALL.flags)] == _SMALL.flags
        return "classic" if classic else "large"


_SMALL_BEFORE = Side((*_PAPER, "--envs-per-worker", "1", "--rollout-length", "20"), (), True)
_SMALL = Side((*_PAPER, *_NEW, "--envs-per-worker", "1", "--rollout-length", "20"))
_LARGE_BEFORE = Side((*_PAPER, *_SHAPE), (), True)
_LARGE = Side((*_PAPER, *_SHAPE, *_NEW))

LEVERS = {
    "history": Lever(_LARGE_BEFORE, _LARGE),
    "history-classic": Lever(_SMALL_BEFORE, _SMALL),
    "float16": Lever(_SMALL, Side((*_SMALL.flags, "--wire-dtype", "float16"))),
    "two-threads": Lever(_LARGE, Side((*_LARGE.flags, "--worker-threads", "2"))),
    "onednn-off": Lever(_LARGE, Side(_LARGE.flags, (("TF_ENABLE_ONEDNN_OPTS", "0"),))),
    "bfloat16": Lever(_LARGE, Side((*_LARGE.flags, "--compute-dtype", "bfloat16"))),
    "xla": Lever(_LARGE, Side(_LARGE.flags, _JIT)),
}


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


def measure(names: Sequence[str], arguments: argparse.Namespace) -> list[Row]:
    """Take turns of all sides of levers of one shape; a shared side takes one turn."""
    where = machine.here()
    sides = list(dict.fromkeys(side for name in names for side in LEVERS[name]))
    with turns.scratch() as folder, ExitStack() as stack:
        trees = {False: REPOSITORY}
        if any(side.from_before for side in sides):
            trees[True] = _checkout(arguments.before, folder)
        cast = [_start(side, str(i), folder, trees) for i, side in enumerate(sides)]
        for one in cast:
            stack.callback(one.close)
        rates = turns.rates(cast, arguments.pairs, arguments.seconds, names[0])
    at = {side: [found[str(i)] for found in rates] for i, side in enumerate(sides)}
    return [
        Row(*where, name, _words(with_it), pair, round(a, 1), round(b, 1), round(b / a, 4))
        for name in names
        for without, with_it in [LEVERS[name]]
        for pair, (a, b) in enumerate(zip(at[without], at[with_it], strict=True), 1)
    ]


def _start(side: Side, name: str, folder: Path, trees: Mapping[bool, Path]) -> Contestant:
    flags = [*side.flags, "--workers", str(os.cpu_count() or 1)]
    environment, tree = dict(side.environment), trees[side.from_before]
    return turns.cluster(name, flags, folder, tree=tree, environment=environment)


def _words(side: Side) -> str:
    return " ".join([*side.flags, *(f"{k}={v}" for k, v in side.environment)])


def _checkout(commit: str, folder: Path) -> Path:
    """Check out the tree of an older commit."""
    tree = folder / "before"
    tree.mkdir()
    git = ["git", "-C", str(REPOSITORY), "archive", commit]
    with subprocess.Popen(git, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    return tree


def summary(rows: Sequence[Row]) -> list[str]:
    """Medians and spread, as a table for the docs."""
    found = turns.ratio_rows((row.lever, row.without, row.with_it) for row in rows)
    titles = ("lever", "without, env steps/s", "with", "ratio of medians", "range of pairs")
    return machine.table(titles, found)


def main() -> int:
    """Measure the requested levers."""
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
    for shape in dict.fromkeys(LEVERS[name].shape for name in arguments.only):
        rows += measure([n for n in arguments.only if LEVERS[n].shape == shape], arguments)
        machine.write(arguments.output, rows)
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
