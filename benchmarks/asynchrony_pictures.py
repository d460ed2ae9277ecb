"""Make the pictures and the tables of the study of asynchrony from its CSV and real-workers.csv.

    python -m benchmarks.asynchrony_pictures

Writes `asynchrony.png` (env steps to solve by workers) and `asynchrony-time.png` (the projected
time to solve on that many cores) next to the table, and the tables in docs/asynchrony.md.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.asynchrony_pictures")

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from a3c.plot import pictures
from a3c.plot.pictures import COLOURS, FAINT
from a3c.run.rundir import REPOSITORY
from benchmarks import machine, real_clusters, scale_model
from benchmarks.asynchrony import (
    IN_C,
    LIMITS,
    REAL,
    REMEDIES,
    SIMULATED,
    TABLE,
    WORKERS,
    Row,
    prefer_c,
    preset,
)
from benchmarks.asynchrony import read as read_rows
from benchmarks.scale_model import costs_of
from benchmarks.scale_queues import Shape, Simulation

PARAMETERS = {  # of the presets' networks
    "cartpole": 4_675,
    "acrobot": 4_868,
    "memory": 8_579,
    "pendulum": 8_963,
    "pong": scale_model.PARAMETERS["pong"],
}
LINK_MBIT_S = 10_000.0
PAGE = REPOSITORY / "docs" / "asynchrony.md"
REAL_RUNS = machine.RESULTS / "real-workers.csv"  # of benchmarks.real_clusters


class Summary(NamedTuple):
    """Runs of one kind, task, remedy and number of workers."""

    kind: str
    task: str
    remedy: str
    workers: int
    runs: int
    solved: int
    median: float  # env steps; a run that isn't solved counts with its limit
    low: float  # quartiles; minimum and maximum for fewer than 4 runs
    high: float
    staleness: float
    updates: float
    collapsed: int
    cpu_ms: float  # an env step

    @property
    def is_bound(self) -> bool:
        """Whether the median is only a lower bound, because half of the runs weren't solved."""
        return 2 * self.solved <= self.runs

    def __str__(self) -> str:
        """The median as text."""
        return f"{'> ' if self.is_bound else ''}{self.median / 1000:,.0f}k"


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Summarise every group of runs."""
    groups = sorted({(r.kind, r.task, r.remedy, r.workers) for r in rows}, key=_order)
    return [
        _summary([r for r in rows if (r.kind, r.task, r.remedy, r.workers) == group])
        for group in groups
    ]


def real_runs(rows: Sequence[Mapping[str, str]]) -> list[Row]:
    """The rows of real clusters as rows of the study, without tasks that were not simulated."""
    return [
        Row(
            time=row["time"],
            commit=row["commit"],
            machine=row["machine"],
            load=float(row["load"]),
            task=row["preset"],
            workers=int(row["workers"]),
            remedy="shared",
            kind=REAL,
            seed=int(row["seed"]),
            solved=row["solved"] == "True",
            env_steps=int(row["env_steps"]),
            staleness=float(row["staleness"]),
            updates=int(row["updates"]),
            wall_s=float(row["wall_s"]),
            cpu_s=0.0,
            collapsed=False,
            flags=row["flags"],
        )
        for row in rows
        if row["preset"] in LIMITS and not row["flags"]
    ]


def _order(group: tuple[str, str, str, int]) -> tuple[object, ...]:
    kind, task, remedy, workers = group
    names = list(REMEDIES)
    place = names.index(remedy) if remedy in names else len(names)
    return list(LIMITS).index(task), place, remedy, kind == REAL, workers


def _summary(rows: Sequence[Row]) -> Summary:
    steps = sorted(row.env_steps for row in rows)
    low, high = float(steps[0]), float(steps[-1])
    if len(steps) >= 4:
        low, _, high = statistics.quantiles(steps, n=4, method="inclusive")
    first = rows[0]
    return Summary(
        *(first.kind, first.task, first.remedy, first.workers, len(rows)),
        sum(row.solved for row in rows),
        statistics.median(steps),
        low,
        high,
        statistics.median(row.staleness for row in rows),
        statistics.median(row.updates for row in rows),
        sum(row.collapsed for row in rows),
        1000 * statistics.median(row.cpu_s / max(1, row.env_steps) for row in rows),
    )


# --- pictures -------------------------------------------------------------------------------------


def learning(found: Sequence[Summary]) -> Figure:
    """Env steps to solve by workers, a panel for each task."""
    found = prefer_c(found)
    tasks = list(dict.fromkeys(one.task for one in found))
    subtitle = "median · band: quartiles, or all of fewer than 4 seeds · hollow: half not solved"
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    size = (13.0, 1.6 + 4.3 * lines)
    made = pictures.page("Env steps to solve against workers", subtitle, size)
    panels = list(made.subplots(lines, columns, squeeze=False).flat)
    names = [name for name in REMEDIES if any(one.remedy == name for one in found)]
    for axes, task in zip(panels, tasks, strict=False):
        for kind, name in itertools.product((SIMULATED, IN_C, REAL), names):
            line = [o for o in found if (o.task, o.kind, o.remedy) == (task, kind, name)]
            if line:
                _line(axes, line, COLOURS[names.index(name) % len(COLOURS)])
        _style_axes(axes, "env steps to solve", task)
    for axes in panels[len(tasks) :]:
        axes.remove()
    pictures.legend_below(made, panels[: len(tasks)])
    return made


def _line(axes: Axes, line: Sequence[Summary], colour: str) -> None:
    """Draw one remedy in one task."""
    workers = [one.workers for one in line]
    axes.fill_between(
        workers, [o.low for o in line], [o.high for o in line], color=colour, alpha=0.15, lw=0
    )
    axes.plot(
        workers,
        [one.median for one in line],
        "-" if line[0].kind == REAL else "--",
        color=colour,
        linewidth=2,
        label=f"{line[0].remedy}, {line[0].kind.removesuffix('-in-c')}",
    )
    for one in line:
        face = "white" if one.is_bound else colour
        axes.plot(one.workers, one.median, "o", color=colour, markerfacecolor=face)


def _style_axes(axes: Axes, ylabel: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    pictures.style_axes(axes, "workers", ylabel, title)
    axes.xaxis.set_major_locator(FixedLocator(WORKERS))


class Projected(NamedTuple):
    """A projected cluster: a core for each worker and one for the ps."""

    task: str
    workers: int
    env_steps: float  # to solve, simulated
    env_steps_per_s: float
    wall_s: float
    limit: str


def projected(found: Sequence[Summary]) -> list[Projected]:
    """Env steps to solve from the study, speed from the scale model and a worker's CPU time."""
    shared = [o for o in found if o.kind != REAL and o.remedy == "shared" and not o.is_bound]
    # A run in C tells how many env steps a task takes, and one in Python what an env step costs.
    costs = {o.task: o.cpu_ms for o in reversed(shared) if o.kind == SIMULATED}
    return [_projected(one, costs[one.task]) for one in prefer_c(shared) if one.task in costs]


def _projected(one: Summary, cpu_ms: float) -> Projected:
    config = preset(one.task, one.workers)
    steps_a_push = config.share.samples_per_push / config.learning.epochs
    costs = costs_of(PARAMETERS[one.task], cpu_ms * steps_a_push)
    outcome = Simulation(Shape(one.workers, 1, LINK_MBIT_S), costs).run()
    rate = steps_a_push * outcome.updates_per_s
    return Projected(
        *(one.task, one.workers, one.median, round(rate)),
        round(one.median / rate, 2),
        outcome.limit,
    )


def times(found: Sequence[Projected]) -> Figure:
    """Seconds to solve and speed-up, a line for each task."""
    subtitle = "simulated env steps to solve ÷ env steps/s of the scale model · one ps · 10 Gbit/s"
    made = pictures.page("Time to solve on 1 to 64 cores, on paper", subtitle, (13.0, 6.5))
    seconds, factors = made.subplots(1, 2)
    factors.plot(WORKERS, WORKERS, ":", color=FAINT, linewidth=1.5, label="as many times as cores")
    for i, task in enumerate(dict.fromkeys(one.task for one in found)):
        line = sorted((o for o in found if o.task == task), key=lambda one: one.workers)
        workers = [one.workers for one in line]
        seconds.plot(workers, [one.wall_s for one in line], "o-", color=COLOURS[i], label=task)
        if line[0].workers == 1:
            speed = [line[0].wall_s / one.wall_s for one in line]
            factors.plot(workers, speed, "o-", color=COLOURS[i], label=task)
    for axes, ylabel, title in (
        (seconds, "s", "seconds to solve"),
        (factors, "times", "as fast as one worker"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=10 if axes is seconds else 2)
        pictures.style_axes(axes, "workers, a core each", ylabel, title)
        axes.xaxis.set_major_locator(FixedLocator(WORKERS))
    factors.yaxis.set_major_locator(FixedLocator(WORKERS))
    pictures.legend_below(made, [seconds, factors])
    return made


# --- tables ---------------------------------------------------------------------------------------


def by_workers(found: Sequence[Summary], remedy: str, kind: str) -> list[str]:
    """Env steps to solve by task and workers, also relative to the fewest."""
    mine = [one for one in found if one.remedy == remedy and one.kind == kind]
    sizes = sorted({one.workers for one in mine})
    rows = []
    for task in dict.fromkeys(one.task for one in mine):
        line = {one.workers: one for one in mine if one.task == task}
        first = line.get(min(line))
        cells = []
        for workers in sizes:
            one = line.get(workers)
            cells.append("" if one is None else f"{one} ({_times(one, first)})")
        rows.append((task, *cells))
    return machine.table(("task", *(f"{n} worker{'s' * (n > 1)}" for n in sizes)), rows)


def _times(one: Summary, first: Summary | None) -> str:
    assert first is not None
    seeds = f"{one.solved} of {one.runs}"
    return seeds if one is first else f"{one.median / first.median:.2f} ×, {seeds}"


def by_remedy(found: Sequence[Summary], workers: int) -> list[str]:
    """All remedies at one number of workers."""
    rows = [
        (
            *(one.task, one.remedy, one.kind, str(one)),
            f"{one.low / 1000:,.0f}k to {one.high / 1000:,.0f}k",
            f"{one.solved} of {one.runs}",
            *(f"{one.staleness:.1f}", f"{one.updates:,.0f}"),
            "" if one.kind == REAL else one.collapsed,  # a real run ends when it is solved
        )
        for one in found
        if one.workers == workers
    ]
    titles = "task|remedy|runs|env steps|quartiles (range below 4 runs)|solved|staleness"
    titles += "|optimizer steps|collapsed"
    return machine.table(titles.split("|"), rows)


def by_time(found: Sequence[Projected]) -> list[str]:
    """The projected seconds to solve."""
    rows = [
        (o.task, o.workers, f"{o.env_steps:,.0f}", f"{o.env_steps_per_s:,.0f}", o.wall_s, o.limit)
        for o in found
        if o.workers in WORKERS
    ]
    titles = "task|workers|env steps|env steps/s|seconds|bottleneck"
    return machine.table(titles.split("|"), rows)


def tables(found: Sequence[Summary], paper: Sequence[Projected]) -> dict[str, list[str]]:
    """The tables of the docs, by name."""
    kinds = dict.fromkeys((one.kind, one.remedy) for one in found)
    return {
        **{f"{remedy}, {kind}": by_workers(found, remedy, kind) for kind, remedy in kinds},
        "at 16 workers": by_remedy(found, 16),
        "at 64 workers": by_remedy(found, 64),
        "on paper": by_time(paper),
    }


def main() -> int:
    """Draw the pictures and write the tables of the page."""
    parser = argparse.ArgumentParser(
        "benchmarks.asynchrony_pictures", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--real", type=Path, default=REAL_RUNS, help="table of real_clusters")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    path = arguments.table
    rows = read_rows(path)
    if not rows:
        parser.error(f"{path} has no runs: make some with python -m benchmarks.asynchrony")
    real = machine.read(arguments.real)
    found = summarise([*rows, *real_runs(real)])
    paper = projected(found)
    made = tables(found, paper)
    made["real clusters"] = real_clusters.summary(real)
    for name, lines in made.items():
        print("\n".join(["", f"{name}:", "", *lines]))
    arguments.page.write_text(machine.filled(arguments.page.read_text(), made))
    print(f"\npicture: {pictures.save(learning(found), path.with_suffix('.png'))}")
    if paper:
        print(f"picture: {pictures.save(times(paper), path.with_name(f'{path.stem}-time.png'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
