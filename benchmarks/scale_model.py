"""A model of large clusters: how many workers the ps serve, the bottleneck, and the staleness.

    python -m benchmarks.scale_model --check     # first compare with real runs on this machine
    python -m benchmarks.scale_model             # only the tables and the picture

The simulation is in scale_queues.py; the costs of a ps and of a worker's pushes come from
ps-capacity.csv and ps-capacity-small.csv in benchmarks/results, and `--env-steps-per-s` is the
speed of play. Trust its ratios and the position of the knee, not the third digit.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.scale_model")

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import COLOURS, DASHES
from a3c.run.rows import last_rows
from benchmarks import hand_made, machine, turns
from benchmarks.machine import RESULTS
from benchmarks.scale_queues import Costs, Shape, Simulation

MEASURED = RESULTS / "ps-capacity.csv"
WORKERS = tuple(2**i for i in range(11))
PS = (1, 2, 4, 8, 16)
LINKS = (1_000.0, 10_000.0)  # Mbit/s
PARAMETERS = {"pong": 58_723, "paper": 677_172}
CHECKED_WORKERS = (1, 2, 4, 8)
PAUSE_MS = 40.0
WARM_UP_S = 2.0
LOOPBACK_MBIT_S = 40_000.0


class Checked(NamedTuple):
    """A real run of pushers and the model's prediction of it."""

    time: str
    commit: str
    machine: str
    load: float
    workers: int
    parameters: int
    pause_ms: float
    measured: float  # updates/s
    predicted: float
    error: float  # predicted ÷ measured - 1
    measured_staleness: float
    predicted_staleness: float


class Point(NamedTuple):
    """One simulated cluster."""

    network: str
    samples: int  # in an update
    workers: int
    ps: int
    link_mbit_s: float
    updates_per_s: float
    env_steps_per_s: float
    staleness: float
    ps_load: float
    link_load: float
    limit: str


def costs_of(parameters: int, play_ms: float, measured: Path = MEASURED) -> Costs:
    """Costs measured by ps_capacity.py, interpolated linearly between network sizes."""
    tables = [measured]
    if parameters < 100_000:
        tables.append(RESULTS / "ps-capacity-small.csv")
    rows = [
        row
        for row in itertools.chain(*map(machine.read, tables))
        if (row["ps"], row["wire_dtype"]) == ("1", "float32")
    ]
    sizes = sorted({int(row["parameters"]) for row in rows})
    found = {
        name: [
            statistics.median(float(r[name]) for r in rows if int(r["parameters"]) == size)
            for size in sizes
        ]
        for name in ("ps_cpu_ms", "worker_cpu_ms")
    }
    at = {name: _on_line(sizes, values, parameters) for name, values in found.items()}
    fixed = _on_line(sizes, found["ps_cpu_ms"], 0)
    return Costs(play_ms, at["worker_cpu_ms"], at["ps_cpu_ms"], fixed, 4.0 * parameters)


def _on_line(sizes: Sequence[int], values: Sequence[float], at: int) -> float:
    """The value at a size, on the straight line through the two nearest; the only one of one."""
    if len(sizes) == 1:
        return values[0]
    near = sorted(range(len(sizes)), key=lambda i: abs(sizes[i] - at))[:2]
    (x0, y0), (x1, y1) = ((sizes[i], values[i]) for i in sorted(near))
    return max(0.1, y0 + (y1 - y0) * (at - x0) / (x1 - x0))


# --- against real runs ----------------------------------------------------------------------------


def check(parameters: int, workers: int, seconds: float, measured: Path) -> Checked:
    """Compare pushers, which pause for the duration of playing, with the model."""
    where = machine.here()
    with ExitStack() as stack:
        folder = stack.enter_context(turns.scratch())
        counts = [folder / f"worker-{i}.jsonl" for i in range(workers)]
        made = hand_made.cluster(1, parameters, PAUSE_MS, counts, folder)
        _, pushers = stack.enter_context(made)
        pushers.wait_until_counting()
        time.sleep(WARM_UP_S)
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
        time.sleep(2 * turns.ROW_INTERVAL_S)
        rate = pushers.rate(begin, end)
        stale = statistics.mean(last_rows(path)[-1]["staleness"] for path in counts)
    shape = Shape(workers, 1, LOOPBACK_MBIT_S, one_core=True)
    modelled = Simulation(shape, costs_of(parameters, PAUSE_MS, measured)).run()
    error = modelled.updates_per_s / rate - 1
    facts = (round(rate, 1), round(modelled.updates_per_s, 1), round(error, 3))
    both = (round(stale, 2), round(modelled.staleness, 2))
    return Checked(*where, workers, parameters, PAUSE_MS, *facts, *both)


# --- the tables -----------------------------------------------------------------------------------


def points(env_steps_per_s: float, samples: int, sizes: Sequence[int] = WORKERS) -> list[Point]:
    """Simulate every cluster of the tables, with `env_steps_per_s` played by a core."""
    play_ms = 1000 * samples / env_steps_per_s
    cases = [
        (network, samples, Shape(workers, ps, link), costs_of(parameters, play_ms))
        for network, parameters in PARAMETERS.items()
        for ps in PS
        for link in LINKS
        for workers in sizes
    ]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(_point, *zip(*cases, strict=True)))


def _point(network: str, samples: int, shape: Shape, costs: Costs) -> Point:
    found = Simulation(shape, costs).run()
    return Point(
        network,
        samples,
        shape.workers,
        shape.ps,
        shape.link_mbit_s,
        round(found.updates_per_s, 1),
        round(samples * found.updates_per_s),
        round(found.staleness, 1),
        round(found.ps_load, 3),
        round(found.link_load, 3),
        found.limit,
    )


def figure(found: Sequence[Point]) -> Figure:
    """Throughput by workers, a line for each number of ps; a panel for each network and link."""
    made = pictures.page(
        "Env steps a second against workers, on paper",
        f"{found[0].samples} samples an update · one core a worker and a ps",
        (13.0, 8.5),
    )
    panels = made.subplots(len(PARAMETERS), len(LINKS), squeeze=False)
    for across, network in zip(panels, PARAMETERS, strict=True):
        for axes, link in zip(across, LINKS, strict=True):
            for i, ps in enumerate(PS):
                line = [p for p in found if (p.network, p.ps, p.link_mbit_s) == (network, ps, link)]
                axes.loglog(
                    [p.workers for p in line],
                    [p.env_steps_per_s for p in line],
                    DASHES[i % len(DASHES)],
                    color=COLOURS[i],
                    linewidth=2,
                    label=f"{ps} ps",
                )
            title = f"{PARAMETERS[network]:,} parameters, {link / 1000:g} Gbit/s"
            pictures.style_axes(axes, "workers", "env steps/s", title)
    pictures.legend_below(made, list(panels.flat))
    return made


def summary(found: Sequence[Point]) -> list[str]:
    """Where throughput stops growing, as a table for the docs."""
    rows = []
    for key in dict.fromkeys((p.network, p.ps, p.link_mbit_s) for p in found):
        line = [p for p in found if (p.network, p.ps, p.link_mbit_s) == key]
        most = max(p.env_steps_per_s for p in line)
        bend = next(p for p in line if p.env_steps_per_s >= 0.9 * most)
        link, there = f"{key[2] / 1000:g} Gbit/s", f"{bend.env_steps_per_s:,}"
        stale = f"{bend.staleness:,.0f}"
        rows.append((*key[:2], link, f"{bend.workers:,}", there, stale, line[-1].limit))
    fewest = "fewest workers with 90 % of the highest speed"
    titles = ("network", "ps", "link", fewest, "env steps/s there", "staleness", "bottleneck")
    return machine.table(titles, rows)


def main() -> int:
    """Check if requested, then make the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="real runs beside the model")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each real run")
    parser.add_argument("--smoke", action="store_true", help="one real run, in seconds")
    parser.add_argument("--samples", type=int, default=40, help="of an update")
    parser.add_argument("--env-steps-per-s", type=float, default=900.0, help="of a core")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/scale-model.csv"))
    arguments = parser.parse_args()
    machine.end_on_signals()
    if arguments.check or arguments.smoke:
        numbers = (2,) if arguments.smoke else CHECKED_WORKERS
        seconds = 1.0 if arguments.smoke else arguments.seconds
        sizes = list(PARAMETERS.values())[-1:] if arguments.smoke else PARAMETERS.values()
        own = arguments.output.with_name(MEASURED.name)  # of this machine, as in `make bench`
        measured = own if own.exists() else MEASURED
        checks = [check(size, n, seconds, measured) for size in sizes for n in numbers]
        machine.write(arguments.output.with_name("scale-check.csv"), checks)
        for one in checks:
            print(
                f"{one.parameters:>9,} parameters, {one.workers:2} workers: measured "
                f"{one.measured:6.1f} updates/s, predicted {one.predicted:6.1f} ({one.error:+.0%})"
            )
    scale = WORKERS[:2] if arguments.smoke else WORKERS
    found = points(arguments.env_steps_per_s, arguments.samples, scale)
    machine.write(arguments.output, found)
    print("\n".join(summary(found)))
    print(f"picture: {pictures.save(figure(found), arguments.output.with_suffix('.png'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
