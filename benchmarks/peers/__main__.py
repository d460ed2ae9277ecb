"""Ours and its peers in turns on the same game, network and cores: env steps a second.

    python -m benchmarks.peers --pairs 5 --seconds 30 --output benchmarks/results/peers.csv
    python -m benchmarks.peers --search --seconds 8    # find the best settings of each peer
    python -m benchmarks.peers --smoke                 # a few seconds of each installed peer

Run it on an otherwise idle machine. Missing virtual environments of peers are made below --venvs
(some gigabytes). The best settings come from the file that --search wrote.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.peers")

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from a3c.plot import pictures
from a3c.run.rundir import REPOSITORY
from benchmarks import machine, turns
from benchmarks.peers import rows as table
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, PEERS, Peer, Settings, named
from benchmarks.peers.measure import Program, Times, measure
from benchmarks.peers.picture import figure
from benchmarks.peers.rows import Row

RESULTS = REPOSITORY / "benchmarks" / "results"
SMOKE = Times(1.0, 3.0)
SMALL = {OURS: {"envs_per_worker": 1}}  # loading a game takes over a second


def main() -> int:
    """Make the virtual environments, then search or compare; returns 1 if a run failed."""
    arguments = parse()
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    peers = tuple(prepared(arguments))
    if arguments.setup:
        return 0
    if arguments.search:
        rows = search(peers, arguments)
    else:
        rows = compare(peers, arguments)
        print("\n".join(table.summary(rows)))
        path = arguments.picture or arguments.output.with_suffix(".png")
        if any(row.env_steps for row in rows):
            print(f"\npicture: {pictures.save(figure(rows), path)}")
    return int(any(not row.env_steps for row in rows))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "benchmarks.peers", description="Ours and its peers in turns: env steps a second."
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before each of them")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/peers.csv"))
    parser.add_argument("--picture", type=Path, help="default: beside the output")
    parser.add_argument("--search", action="store_true", help="try each peer's settings instead")
    parser.add_argument("--searched", type=Path, default=RESULTS / "peers-search.csv")
    parser.add_argument("--venvs", type=Path, default=Path("runs/peers"))
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS])
    parser.add_argument("--setup", action="store_true", help="only make the environments")
    parser.add_argument("--smoke", action="store_true", help="seconds, of what is installed")
    return parser.parse_args()


def prepared(arguments: argparse.Namespace) -> Iterator[Peer]:
    """The peers that can run; prints each other peer with the reason."""
    for peer in named(arguments.only):
        if peer.name == OURS:
            yield peer
            continue
        if arguments.smoke and not venvs.is_made(peer.name, arguments.venvs):
            print(f"skipped: {peer.name} is not installed in {arguments.venvs}", flush=True)
            continue
        try:
            venvs.make(peer.name, arguments.venvs)
        except venvs.VenvError as error:
            print(f"left out: {peer.name} can't be installed here:\n{error}", flush=True)
            continue
        yield peer


def compare(peers: tuple[Peer, ...], arguments: argparse.Namespace) -> list[Row]:
    """Compare all programs in turns; the CSV gets a row after each turn."""
    found: list[Row] = []
    times = SMOKE if arguments.smoke else Times(arguments.warm_up, arguments.seconds)

    def add(row: Row) -> None:
        found.append(row)
        tell(row)
        machine.write(arguments.output, found)

    with turns.scratch() as folder, ExitStack() as stack:
        programs: dict[str, Program] = {}
        for peer, settings in choices(peers, arguments):
            programs[peer.name] = Program(peer, settings, arguments.venvs, folder)
            stack.callback(programs[peer.name].contestant.close)
        cast = [program.contestant for program in programs.values()]
        failed = turns.freeze_when_counting(cast, times.warm_up_s)
        for name, error in failed.items():
            add(programs[name].failed(1, str(error)))
        turns.take_turns(
            [one for one in cast if one.name not in failed],
            1 if arguments.smoke else arguments.pairs,
            times.seconds,
            lambda pair, one, rate: add(programs[one.name].row(pair, times.seconds, rate)),
        )
    return found


def choices(
    peers: tuple[Peer, ...], arguments: argparse.Namespace
) -> Iterator[tuple[Peer, Settings]]:
    """Each peer with its best settings so far."""
    path = arguments.searched
    best = table.best_settings(table.read(path)) if path.exists() else {}
    for peer in peers:
        small = SMALL.get(peer.name, {}) if arguments.smoke else {}
        yield peer, best.get(peer.name, peer.grid[0]) | small


def search(peers: tuple[Peer, ...], arguments: argparse.Namespace) -> list[Row]:
    """Try each peer's settings once; settings that the file already has are skipped."""
    path = arguments.searched
    found = table.read(path) if path.exists() else []
    times = Times(arguments.warm_up, arguments.seconds)
    for peer in peers:
        while (settings := next_candidate(peer, found)) is not None:
            found.append(measure(peer, settings, arguments.venvs, times))
            tell(found[-1])
            machine.write(path, table.mark_best(found))
    return found


def next_candidate(peer: Peer, found: Sequence[Row]) -> Settings | None:
    """The next settings to try: from the grid, or a variation of the best so far."""
    tried = [json.loads(row.settings) for row in found if row.peer == peer.name]
    best = table.best_settings(table.mark_best(found)).get(peer.name, peer.grid[0])
    candidates = [*peer.grid, *(best | variation for variation in peer.variations)]
    return next((settings for settings in candidates if settings not in tried), None)


def tell(row: Row) -> None:
    """Print a line about a run that has ended."""
    speed = f"{row.env_steps_per_s:8,.1f} env steps/s" if row.env_steps else f"failed: {row.note}"
    print(f"{row.pair} {row.peer:15} {speed}   {row.settings}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
