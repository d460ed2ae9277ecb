"""The number of workers at which the modelled time to solve Pong stops falling.

    python -m benchmarks.scale_solve

Env steps a second come from the scale model (scale_queues.py), for 1, 2 and 4 ps, for one ps with
larger pushes, and for 16 hosts with a gatherer each. A gatherer is a process that averages one push
from each worker of its host and sends the mean as one push. The number of env steps to solve Pong
with many workers isn't known. Two cases bound it: the same as with two workers, or growing as for
CartPole in the simulated study.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.scale_solve")

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import COLOURS
from a3c.run.rundir import REPOSITORY
from benchmarks import asynchrony, machine
from benchmarks.asynchrony import Row
from benchmarks.machine import RESULTS
from benchmarks.scale_model import LOOPBACK_MBIT_S, PARAMETERS, costs_of
from benchmarks.scale_queues import Shape, Simulation

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LINKS = (1_000.0, 10_000.0)  # Mbit/s
HOSTS = 16
SMALL, LARGE = 16, 128  # samples, the smallest push: of the preset, and a whole rollout
KINDS = ((1, SMALL, 0), (2, SMALL, 0), (4, SMALL, 0), (1, LARGE, 0), (1, SMALL, HOSTS))
SAME, CARTPOLE = "same for all", "as CartPole"
PAGE = REPOSITORY / "docs" / "scaling.md"
TABLE = "time to solve Pong"  # its name in the page
ENOUGH = 1.05  # times the minimum; more workers than this gain too little


class Point(NamedTuple):
    """One simulated cluster."""

    link_mbit_s: float
    ps: int
    smallest_push: int
    hosts: int  # with a gatherer each; 0 means without gatherers
    workers: int
    env_steps_per_s: float
    learning: str
    env_steps: float
    wall_s: float


def env_steps_a_push(workers: int, smallest_push: int) -> float:
    """New env steps in a push, as the preset shares its samples; each is in one push an epoch."""
    config = asynchrony.preset("pong", workers)
    learning = dataclasses.replace(config.learning, smallest_push=smallest_push)
    share = dataclasses.replace(config, learning=learning).share
    return share.samples_per_push / learning.epochs


def pushes_per_s(workers: int, ps: int, hosts: int, link: float, play_ms: float) -> float:
    """Pushes a second of all workers; a gatherer waits for the ps before it gathers again."""
    costs = costs_of(PARAMETERS["pong"], play_ms)
    if not hosts:
        return Simulation(Shape(workers, ps, link), costs).run().updates_per_s
    per_host = workers // hosts
    gathered_per_s = Simulation(Shape(per_host, 1, LOOPBACK_MBIT_S), costs).run().updates_per_s
    gatherer = costs._replace(play_ms=1000 * per_host / gathered_per_s)
    return per_host * Simulation(Shape(hosts, ps, link), gatherer).run().updates_per_s


def factors(rows: Sequence[Row]) -> dict[int, float]:
    """CartPole's env steps in the simulated study, relative to one worker."""
    steps: dict[int, list[int]] = {}
    for row in asynchrony.prefer_c(rows):
        if (row.task, row.remedy) == ("cartpole", "shared"):
            steps.setdefault(row.workers, []).append(row.env_steps)
    one = statistics.median(steps[1])
    return {n: statistics.median(found) / one for n, found in steps.items()}


def points(learned: Mapping[int, float], env_steps: float, env_steps_per_s: float) -> list[Point]:
    """Every cluster; `learned` has CartPole's factors by workers, without gatherers."""
    found = []
    for link in LINKS:
        for ps, smallest_push, hosts in KINDS:
            for workers in WORKERS:
                if hosts and workers < 2 * hosts:
                    continue
                steps_a_push = env_steps_a_push(workers, smallest_push)
                play_ms = 1000 * steps_a_push / env_steps_per_s
                rate = pushes_per_s(workers, ps, hosts, link, play_ms) * steps_a_push
                factor = None if hosts else learned.get(workers)
                for learning, times in ((SAME, 1.0), (CARTPOLE, factor)):
                    if times is not None:
                        steps = env_steps * times
                        seconds = round(steps / rate, 1)
                        shape = (link, ps, smallest_push, hosts, workers, round(rate))
                        found.append(Point(*shape, learning, round(steps), seconds))
    return found


def lines(found: Sequence[Point]) -> list[list[Point]]:
    """The points of each line: those that differ only in their workers."""
    together: dict[object, list[Point]] = {}
    for p in found:
        key = (p.link_mbit_s, p.ps, p.smallest_push, p.hosts, p.learning)
        together.setdefault(key, []).append(p)
    return list(together.values())


def summary(found: Sequence[Point]) -> list[str]:
    """Where each line stops falling, as a table for the docs."""
    rows = []
    for line in lines(found):
        least = min(point.wall_s for point in line)
        end = next(point for point in line if point.wall_s <= ENOUGH * least)
        rows.append(
            (
                *(f"{end.link_mbit_s / 1000:g} Gbit/s", end.ps, end.smallest_push),
                *(end.hosts or "", end.learning),
                *(end.workers, f"{end.env_steps_per_s:,.0f}", f"{end.wall_s:.1f}"),
                f"{line[-1].wall_s:.1f}",
            )
        )
    titles = "link|ps|smallest push|gatherers|env steps to solve|workers where it stops falling"
    titles += "|env steps/s there|seconds there|seconds with the most workers"
    return machine.table(titles.split("|"), rows)


def figure(found: Sequence[Point]) -> Figure:
    """Seconds by workers, a panel for each link."""
    subtitle = "solid: as many env steps with any number of workers · dotted: as simulated CartPole"
    made = pictures.page("Time to solve Pong against workers, on paper", subtitle, (13.0, 6.5))
    panels = list(made.subplots(1, len(LINKS), sharey=True, squeeze=False).flat)
    for line in lines(found):
        first = line[0]
        axes = panels[LINKS.index(first.link_mbit_s)]
        more = f", {first.hosts} gatherers" if first.hosts else ""
        more += f", pushes of {LARGE}" if first.smallest_push == LARGE else ""
        label = f"{first.ps} ps{more}" if first.learning == SAME else None
        axes.loglog(
            [p.workers for p in line],
            [p.wall_s for p in line],
            ("-" if first.learning == SAME else ":") + ("o" if len(line) == 1 else ""),
            color=COLOURS[KINDS.index((first.ps, first.smallest_push, first.hosts))],
            linewidth=2,
            label=label,
        )
    for axes, link in zip(panels, LINKS, strict=True):
        axes.set_xscale("log", base=2)
        pictures.style_axes(axes, "workers, a core each", "s", f"{link / 1000:g} Gbit/s")
    pictures.legend_below(made, panels)
    return made


def main() -> int:
    """Make the table and the picture."""
    parser = argparse.ArgumentParser(
        "benchmarks.scale_solve", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--env-steps", type=float, default=467_488, help="to solve, two workers")
    parser.add_argument("--env-steps-per-s", type=float, default=589.0, help="of a core")
    parser.add_argument("--study", type=Path, default=asynchrony.TABLE)
    parser.add_argument("--output", type=Path, default=RESULTS / "scale-solve.csv")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    learned = factors(asynchrony.read(arguments.study))
    found = points(learned, arguments.env_steps, arguments.env_steps_per_s)
    machine.write(arguments.output, found)
    made = summary(found)
    print("\n".join(made))
    arguments.page.write_text(machine.filled(arguments.page.read_text(), {TABLE: made}))
    print(f"picture: {pictures.save(figure(found), arguments.output.with_suffix('.png'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
