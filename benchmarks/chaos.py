"""Inject random faults into a cluster for minutes, and check invariants.

    python -m benchmarks.chaos --minutes 30 --seed 7 --output benchmarks/results/chaos-7.json

Every process has its own host (a network namespace), so hosts can be disconnected. The run
directory is on a small disk, so it can fill up. Processes are killed or frozen, keepers killed. The
same seed gives the same events, but not the same run. Needs root. The exit code is 1 if an
invariant was violated.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.chaos")

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a3c.run import rundir
from benchmarks import machine
from benchmarks.witness import Witness
from tests.faults import simulated_network
from tests.faults.simulated_network import Conditions
from tests.faults.spread_cluster import HostCluster, host_cluster
from tests.full_disks import fill, small_disk
from tests.runs import wait_until

FLAGS = ("--ps-timeout", "10", "--checkpoint-interval", "5")
GAMES = {  # CartPole keeps a ledger and is solved in minutes; Pong only has to keep running
    "cartpole": ("--preset", "cartpole"),
    "pong": ("--preset", "pong", "--env-id", "ALE/Pong-v5"),
}
GOALS = {"cartpole": 475.0, "pong": -21.0}
SHORT_MINUTES, SHORT_GOAL = 10.0, 100.0  # a short run: CartPole has to learn, but not to be solved
LOOK_S = 2.0
SMALLEST_S, LONGEST_S = 1.0, 8.0  # of a fault that ends


@dataclass
class Chaos:
    """Draws faults from a seed and injects them into a cluster."""

    cluster: HostCluster
    random: random.Random
    disk: Path | None  # a small disk that may be filled
    ps_deaths: list[float] = field(default_factory=list)

    def inject(self) -> str:
        """Inject one fault, wait until it is over, and return what it was."""
        worker = f"worker-{self.random.randrange(self.cluster.num_workers)}"
        any_process = self.random.choice(list(self.cluster.hosts))
        length_s = round(self.random.uniform(SMALLEST_S, LONGEST_S), 1)
        for_a_while = f"for {length_s:g} s"
        events: list[tuple[str, Callable[[], None]]] = [
            (f"kill {worker}", lambda: self._kill(worker)),
            (f"kill {worker}", lambda: self._kill(worker)),
            ("kill ps-0", lambda: self._kill("ps-0")),
            (f"kill the keeper of {any_process}", lambda: self._kill_keeper(any_process)),
            (f"freeze {worker} {for_a_while}", lambda: self._freeze(worker, length_s)),
            (f"freeze ps-0 {for_a_while}", lambda: self._freeze("ps-0", length_s)),
        ]
        for what, change in (
            ("cut off", {"cut": True}),
            ("lose 30 % of the packets of", {"loss": 0.3}),
            ("delay by 300 ms the packets of", {"delay_s": 0.3}),
        ):
            bad = functools.partial(self._spoil_network, any_process, length_s, **change)
            events.append((f"{what} {any_process} {for_a_while}", bad))
        if self.disk:
            events.append((f"fill the disk {for_a_while}", lambda: self._fill_disk(length_s)))
        words, inject_event = self.random.choice(events)
        inject_event()
        return words

    def _signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to a process; returns whether it is alive."""
        pid = self.cluster.pid(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def _kill(self, name: str) -> None:
        if name == "ps-0":
            self.ps_deaths.append(time.time())
        self._signal(name, signal.SIGKILL)

    def _kill_keeper(self, name: str) -> None:
        """Kill a keeper, and its process with it, and start another one."""
        if name == "ps-0":
            self.ps_deaths.append(time.time())
        self.cluster.kill_keeper(name)
        self.cluster.start_one(name)

    def _freeze(self, name: str, length_s: float) -> None:
        if self._signal(name, signal.SIGSTOP):
            time.sleep(length_s)
            self._signal(name, signal.SIGCONT)

    def _spoil_network(self, name: str, length_s: float, **bad: Any) -> None:
        host = self.cluster.hosts[name]
        host.conditions = Conditions(**bad)
        time.sleep(length_s)
        host.conditions = Conditions()

    def _fill_disk(self, length_s: float) -> None:
        assert self.disk
        filler = fill(self.disk)
        time.sleep(length_s)
        filler.unlink()


def main() -> int:
    """Start the cluster, inject faults, end it, and judge."""
    arguments = parse()
    machine.end_on_signals()
    if simulated_network.why_not():
        sys.exit(f"chaos.py: {simulated_network.why_not()}")
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        disk, ledger = Path(scratch) / "disk", Path(scratch) / "ledger"
        disk.mkdir()
        with (
            small_disk(disk, "256m"),
            simulated_network.hosts(1 + arguments.workers) as hosts,
            host_cluster(disk / "run", ledger, hosts, *GAMES[arguments.game], *FLAGS) as cluster,
        ):
            report = run(cluster, disk, arguments)
    for line in report["complaints"]:
        print(f"BROKEN: {line}")
    print(json.dumps({k: v for k, v in report.items() if k != "events"}, indent=1))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["complaints"] else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--gap", type=float, default=10.0, help="mean seconds between events")
    parser.add_argument("--game", choices=sorted(GAMES), default="cartpole")
    parser.add_argument("--output", type=Path, help="JSON file for events and verdict")
    return parser.parse_args()


def run(cluster: HostCluster, disk: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Inject faults for a while, end the cluster in order, and judge it."""
    commit, began = rundir.git_commit(), time.time()
    wait_until(lambda: cluster.step > 0, "training")
    witness, over = Witness(cluster), threading.Event()
    watching = threading.Thread(target=watch, args=(witness, over))
    watching.start()
    chaos = Chaos(cluster, random.Random(arguments.seed), disk)  # noqa: S311
    try:
        events = inject_until(chaos, began + 60 * arguments.minutes, arguments.gap)
        wait_until(lambda: all(cluster.pid(name) for name in cluster.hosts), "everybody back")
        cluster.wait_for_steps("training after all that")
    finally:
        over.set()
        watching.join()
    cluster.leave()
    return {
        "game": arguments.game,
        "seed": arguments.seed,
        "minutes": arguments.minutes,
        "workers": arguments.workers,
        "commit": commit,
        "num_events": len(events),
        "ps_deaths": len(chaos.ps_deaths),
        "env_steps": cluster.step,
        "best_mean_return_100": witness.best(),
        "growth_mb_per_min": round(witness.steepest(), 2),
        "complaints": witness.violations(chaos.ps_deaths, goal(arguments)),
        "events": events,
    }


def goal(arguments: argparse.Namespace) -> float:
    """The mean return of 100 games that must be reached."""
    short = arguments.minutes < SHORT_MINUTES
    return min(GOALS[arguments.game], SHORT_GOAL) if short else GOALS[arguments.game]


def watch(witness: Witness, over: threading.Event) -> None:
    """Observe repeatedly until `over` is set."""
    while not over.wait(LOOK_S):
        witness.look()


def inject_until(chaos: Chaos, until: float, gap_s: float) -> list[dict[str, Any]]:
    """Inject one event after the other, with time to recover in between."""
    events = []
    began = time.time()
    while time.time() < until:
        time.sleep(chaos.random.expovariate(1 / gap_s))
        at = time.time() - began
        events.append({"at_s": round(at, 1), "what": chaos.inject(), "step": chaos.cluster.step})
        print(f"{at:7.1f} s  step {events[-1]['step']:>11,}  {events[-1]['what']}", flush=True)
    return events


if __name__ == "__main__":
    sys.exit(main())
