"""Ours and its peers in turns on the same game, network and cores: env steps a second.

    python -m benchmarks.peers --pairs 5 --seconds 30 --output benchmarks/results/peers.csv
    python -m benchmarks.peers --smoke                 # a few seconds of each installed peer

Run it on an otherwise idle machine. Missing virtual environments of peers are made below --venvs
(some gigabytes).
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.peers")

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from a3c.plot import pictures
from benchmarks import machine, turns
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, PEERS, Peer
from benchmarks.peers.measure import Program
from benchmarks.peers.rows import Row, figure, summary

SMALL = {OURS: {"envs_per_worker": 1}}  # loading a game takes over a second


def main() -> int:
    """Make the virtual environments, then compare; returns 1 if a run failed."""
    arguments = parse()
    peers = list(prepared(arguments))
    if arguments.setup:
        return 0
    rows = compare(peers, arguments)
    print("\n".join(summary(rows)))
    if any(row.env_steps for row in rows):
        print(f"\npicture: {pictures.save(figure(rows), arguments.output.with_suffix('.png'))}")
    return int(any(not row.env_steps for row in rows))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "benchmarks.peers", description="Ours and its peers in turns: env steps a second."
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds, once for each program")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/peers.csv"))
    parser.add_argument("--venvs", type=Path, default=Path("runs/peers"))
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS])
    parser.add_argument("--setup", action="store_true", help="only make the environments")
    parser.add_argument("--smoke", action="store_true", help="seconds, of what is installed")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.pairs, arguments.warm_up, arguments.seconds = 1, 1.0, 3.0
    return arguments


def prepared(arguments: argparse.Namespace) -> Iterator[Peer]:
    """The peers that can run; prints each other peer with the reason."""
    for peer in PEERS:
        if arguments.only and peer.name not in arguments.only:
            continue
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


def compare(peers: Sequence[Peer], arguments: argparse.Namespace) -> list[Row]:
    """Compare all programs in turns; the CSV gets a row after each turn."""
    found: list[Row] = []

    def add(row: Row) -> None:
        found.append(row)
        tell(row)
        machine.write(arguments.output, found)

    with turns.scratch() as folder, ExitStack() as stack:
        programs: dict[str, Program] = {}
        for peer in peers:
            small = SMALL.get(peer.name, {}) if arguments.smoke else {}
            program = Program(peer, peer.settings | small, arguments.venvs, folder)
            programs[peer.name] = program
            stack.callback(program.contestant.close)
        contestants = [program.contestant for program in programs.values()]
        failed = turns.freeze_when_counting(contestants, arguments.warm_up)
        for name, error in failed.items():
            add(programs[name].failed(1, str(error)))
        seconds = arguments.seconds
        turns.take_turns(
            [one for one in contestants if one.name not in failed],
            arguments.pairs,
            seconds,
            lambda pair, one, rate: add(programs[one.name].row(pair, seconds, rate)),
        )
    return found


def tell(row: Row) -> None:
    """Print a line about a run that has ended."""
    speed = f"{row.env_steps_per_s:8,.1f} env steps/s" if row.env_steps else f"failed: {row.note}"
    print(f"{row.pair} {row.peer:15} {speed}   {row.settings}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
