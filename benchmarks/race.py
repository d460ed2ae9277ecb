"""A race to solve Pong: ours and its peers train from scratch in turns on the same cores.

    python -m benchmarks.race --seed 1 --output benchmarks/results/race.csv
    python -m benchmarks.race --only a3c-cluster --variant=--no-normalize-advantages --whole

All programs are alive, and all but one are frozen, so a slow hour of the machine affects all
programs equally. A program's time is the sum of its own turns, including its start. When a program
has solved the game, the round is completed, so that all have had the same time; with `--whole` the
others continue until they end. Run it on an otherwise idle machine; it takes as many times as long
as there are programs.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.race")

import argparse
import csv
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from a3c.plot import pictures
from a3c.run.rundir import REPOSITORY, RunDir
from benchmarks import machine
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS
from benchmarks.peers.measure import our_versions
from benchmarks.peers.programs.progress import CURVE
from benchmarks.peers.rows import pack
from benchmarks.race_picture import curve, figure
from benchmarks.time_to_solve import (
    CONTESTANTS,
    Contestant,
    Solved,
    add_common,
    curve_path,
    last_row,
    our_command,
    our_curve,
    peer_command,
    reached,
    summary,
    write_curve,
)
from benchmarks.turns import MAX_FROZEN_S, Tree

POLL_S = 0.2
START_S = 30.0  # of the first turn; a program isn't frozen while it starts
FOREVER_S = 10**9
# A frozen program sends no heartbeats, and its own supervisor must not treat it as dead.
PATIENT = ("--ps-timeout", "1800", "--heartbeat-timeout", "3600")


class Turns:
    """The times of a program's turns, by the clock."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, float]] = []

    def add(self, begin: float, end: float) -> None:
        """Add a turn."""
        self._turns.append((begin, end))

    def seconds(self, until: float) -> float:
        """Its total running time up to a time of the clock."""
        return sum(min(end, until) - begin for begin, end in self._turns if begin < until)


class Racer:
    """A program that starts in its first turn and is frozen between turns."""

    def __init__(self, contestant: Contestant, seed: int, arguments: argparse.Namespace) -> None:
        self.name = contestant.name
        self._contestant, self._seed, self._arguments = contestant, seed, arguments
        self._curve = curve_path(arguments.output, contestant.name, seed)
        self._scratch = tempfile.TemporaryDirectory(prefix="a3c-race-")
        self._run = RunDir(Path(self._scratch.name) / "run")
        self._where = machine.here()
        self._turns, self._began = Turns(), 0.0
        self._tree: Tree | None = None
        self._cpu_s = 0.0

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        return self._tree is not None and self._tree.exit_code() is not None

    def turn(self, seconds: float) -> None:
        """Let it run for this time, or until it ends."""
        begin = time.time()
        if self._tree is None:
            self._began = begin
            self._tree = Tree(self._start())
        self._tree.thaw()
        while not self.ended and time.time() < begin + seconds:
            time.sleep(POLL_S)
        self._tree.freeze()
        self._turns.add(begin, time.time())
        self._cpu_s = max(self._cpu_s, sum(self._tree.cpu_seconds().values()))

    def solved(self) -> bool:
        """Whether its mean return has reached the goal."""
        return self.ended and self.row().solved

    def row(self) -> Solved:
        """Its result so far, in its own running time."""
        self._write_curve()
        end = last_row(self._curve)
        solved, mean = reached(end, self._arguments.goal)
        return Solved(
            *self._where,
            self.name,
            self._versions(),
            pack(self._settings()),
            self._seed,
            solved,
            float(end["wall_s"]),
            round(self._cpu_s, 1),
            int(end["env_steps"]),
            int(end["games"]),
            mean,
            "solved" if solved else "failed" if self.ended else "not solved by then",
        )

    def close(self) -> None:
        """End the program."""
        if self._tree:
            self._tree.close()
        self._scratch.cleanup()

    def _start(self) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            self._command(),
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _versions(self) -> str:
        if self._contestant.venv:
            return f"benchmarks/peers/{self._contestant.venv}.txt"
        return our_versions(self._run) if self._run.config.exists() else ""

    def _settings(self) -> dict[str, Any]:
        if self._contestant.program:
            return self._contestant.settings
        return {"preset": "pong", "workers": self._arguments.workers, "flags": self._flags}

    @property
    def _flags(self) -> list[str]:
        return [*self._contestant.flags, *self._arguments.flags]

    def _command(self) -> list[str]:
        one, seed, arguments = self._contestant, self._seed, self._arguments
        if one.program:
            return peer_command(one, seed, self._raw, self._began, FOREVER_S, arguments)
        return [*our_command(self._run, seed, arguments), *PATIENT, *self._flags]

    @property
    def _raw(self) -> Path:
        return Path(self._scratch.name) / "curve.csv"

    def _write_curve(self) -> None:
        """Write its curve by its own running time."""
        rows = [(self._own(wall_s), *rest) for wall_s, *rest in self._rows()]
        write_curve(self._curve, rows)

    def _own(self, wall_s: float) -> float:
        return round(self._turns.seconds(self._began + wall_s), 1)

    def _rows(self) -> list[tuple[Any, ...]]:
        if self._contestant.program:
            return peer_rows(self._raw)
        return our_curve(self._run, self._began)


def main() -> int:
    """Run the race, keep its rows, and print the winner."""
    arguments = parse()
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    chosen = [one for one in CONTESTANTS if not arguments.only or one.name in arguments.only]
    chosen += [variant(flags) for flags in arguments.variant]
    for venv in {one.venv for one in chosen if one.venv}:
        venvs.make(venv, arguments.venvs)
    with racers(chosen, arguments) as field:
        try:
            race(field, arguments)
        finally:
            rows = [racer.row() for racer in field]
            machine.append(arguments.output, rows)
            print("\n".join(summary(rows)))
            draw(rows, arguments)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.race", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turn", type=float, default=20.0, help="seconds of each turn, at most")
    parser.add_argument("--whole", action="store_true", help="go on when one has solved it")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="FLAGS", help="of ours, to take part too"
    )
    parser.add_argument("--max-minutes", type=float, default=60.0, help="of each one's own time")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/race.csv"))
    add_common(parser)
    return parser.parse_args()


def draw(rows: Sequence[Solved], arguments: argparse.Namespace) -> None:
    """Draw the picture, next to the table."""
    output = arguments.output
    curves = {row.program: curve(curve_path(output, row.program, row.seed)) for row in rows}
    seen = [row for row in rows if curves[row.program]]
    if seen:
        made = figure(seen, curves, arguments.goal)
        print(f"\npicture: {pictures.save(made, output.with_suffix('.png'))}")


@contextmanager
def racers(chosen: Sequence[Contestant], arguments: argparse.Namespace) -> Iterator[list[Racer]]:
    """The racers; all of them are ended on exit."""
    field = [Racer(one, arguments.seed, arguments) for one in chosen]
    try:
        yield field
    finally:
        for racer in field:
            racer.close()


def variant(flags: str) -> Contestant:
    """A contestant of ours with other flags."""
    words = shlex.split(flags)
    name = "-".join([OURS, *(word.lstrip("-") for word in words)])
    return Contestant(name, flags=tuple(words))


def race(field: Sequence[Racer], arguments: argparse.Namespace) -> None:
    """Rounds of turns until a racer has solved the game or all have ended.

    They start in the first round, ours last, because ours can't be frozen during all other starts.
    """
    turn_s = min(arguments.turn, MAX_FROZEN_S / max(1, len(field) - 1))
    for number in range(round(60 * arguments.max_minutes / turn_s)):
        for racer in field if number else field[::-1]:
            if not racer.ended:
                racer.turn(turn_s if number else max(turn_s, START_S))
        tell(number + 1, field)
        solved = not arguments.whole and any(racer.solved() for racer in field)
        if solved or all(racer.ended for racer in field):
            return


def tell(number: int, field: Sequence[Racer]) -> None:
    """Log a line about a round."""
    rows = [racer.row() for racer in field]
    found = [f"{row.program} {row.env_steps:,} {row.mean_return_100:.1f}" for row in rows]
    print(f"round {number}: {'; '.join(found)}", flush=True)


def peer_rows(path: Path) -> list[tuple[Any, ...]]:
    """The curve that a peer's program writes, by the clock."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    names = CURVE[1:]
    return [(float(row["wall_s"]), *(row[name] for name in names)) for row in rows]


if __name__ == "__main__":
    sys.exit(main())
