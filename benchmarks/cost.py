"""The cost of an env step: CPU time by part, memory, and the time to start.

    python -m benchmarks.cost --output benchmarks/results/cost.csv

Clusters of 1 to 16 workers with the Pong preset on all cores. Rollouts of 32 steps and as many
samples an update let some rollouts fit into the time at any number of workers. The parts are CPU
time, not wall time, so they also hold with more workers than cores. "Python" is the time of a
worker's main thread outside of TensorFlow's calls and the emulator: it overlaps with the other
parts and isn't added to them.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.cost")

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import COLOURS, INK
from a3c.watch.processes import read_pss_mb
from benchmarks import hand_made, machine, turns

PARTS = ("env", "act", "learn", "exchange", "other")
WARM_UP_S = 3.0
SHAPE = ("--rollout-length", "32", "--minibatches", "2")
ENDLESS = (
    *("--preset", "pong", "--evaluation-episodes", "0", "--stop-at-return", "1e9"),
    *("--log-interval", "0.5", "--max-env-steps", str(10**12)),
)
SMALL = ("--envs-per-worker", "1", "--minibatches", "1")


class Row(NamedTuple):
    """One cluster. The parts are CPU milliseconds an env step, summed over all workers and ps."""

    time: str
    commit: str
    machine: str
    load: float
    workers: int
    env_steps_per_s: float
    env_ms: float
    act_ms: float
    learn_ms: float
    exchange_ms: float
    other_ms: float
    ps_ms: float
    python_share: float  # of the workers' CPU time
    worker_pss_mb: float
    ps_pss_mb: float
    start_s: float  # until every worker plays


def measure(workers: int, seconds: float, more: Sequence[str]) -> Row:
    """Start a cluster, observe it for a while, end it."""
    where, began = machine.here(), time.time()
    with turns.scratch() as folder:
        counts = [folder / f"cost-{i}.jsonl" for i in range(workers)]
        rows = [folder / "metrics" / f"worker-{i}.jsonl" for i in range(workers)]
        flags = [*ENDLESS, *more]
        with hand_made.cluster(1, _programs(counts), rows, folder, flags) as (ps, cast):
            cast.wait_until_counting(timeout_s=600.0)
            start_s = time.time() - began
            time.sleep(WARM_UP_S)
            begin, before = time.time(), sum(ps[0].cpu_seconds().values())
            time.sleep(seconds)
            end, ps_cpu = time.time(), sum(ps[0].cpu_seconds().values()) - before
            time.sleep(1.5)
            pss = [[read_pss_mb(pid) or 0.0 for pid in one.pids()] for one in (ps[0], cast)]
            steps = turns.steps_between(rows[0], begin, end)
            parts = [_mean_parts(path, begin, end) for path in rows]
            python = [_python_share(path, begin, end) for path in counts]
    cpu = {name: sum(part[name] for part in parts) * (end - begin) for name in PARTS}
    parts_ms: dict[str, Any] = {f"{n}_ms": round(1000 * cpu[n] / steps, 4) for n in PARTS}
    return Row(
        *where,
        workers=workers,
        env_steps_per_s=round(steps / (end - begin), 1),
        **parts_ms,
        ps_ms=round(1000 * ps_cpu / steps, 4),
        python_share=round(statistics.mean(python), 4),
        worker_pss_mb=round(statistics.median(sorted(pss[1])[-workers:]), 1),
        ps_pss_mb=round(max(pss[0]), 1),
        start_s=round(start_s, 1),
    )


def _programs(counts: Sequence[Path]) -> list[list[str]]:
    """The commands of workers that count their work, without the cluster's arguments."""
    program = [sys.executable, "-m", "benchmarks.cost_process"]
    return [
        [*program, str(path), "--job", "worker", "--task", str(task)]
        for task, path in enumerate(counts)
    ]


def _mean_parts(path: Path, begin: float, end: float) -> dict[str, float]:
    """CPU seconds a second, by part, over the rows between two times."""
    rows = [row for row in _read(path) if begin <= row["time"] <= end and "time/act" in row]
    return {name: statistics.mean(row.get(f"time/{name}", 0.0) for row in rows) for name in PARTS}


def _python_share(path: Path, begin: float, end: float) -> float:
    rows = [row for row in _read(path) if begin <= row["time"] <= end]
    first, last = rows[0], rows[-1]
    main, outside, cpu = (last[k] - first[k] for k in ("main_s", "outside_s", "cpu_s"))
    return (main - outside) / cpu


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def figure(rows: Sequence[Row]) -> Figure:
    """A stacked bar for each cluster."""
    made = pictures.page(
        "CPU time of an env step", f"Pong preset · {rows[0].machine} · commit {rows[0].commit[:9]}"
    )
    axes = made.subplots()
    bottoms = [0.0] * len(rows)
    for colour, name in zip(COLOURS, (*PARTS, "ps"), strict=False):
        heights = [getattr(row, f"{name}_ms") for row in rows]
        axes.bar(range(len(rows)), heights, bottom=bottoms, color=colour, width=0.62, label=name)
        bottoms = [a + b for a, b in zip(bottoms, heights, strict=True)]
    for place, (row, top) in enumerate(zip(rows, bottoms, strict=True)):
        text = f"{row.env_steps_per_s:,.0f} env steps/s\n{row.python_share:.0%} of it Python"
        axes.text(place, 1.02 * top, text, ha="center", size=11, color=INK)
    pictures.dress(axes, "workers", "CPU ms an env step")
    axes.set_xticks(range(len(rows)), [str(row.workers) for row in rows])
    axes.set_ylim(0, 1.2 * max(bottoms))
    axes.grid(visible=False, axis="x")
    pictures.legend_below(made, [axes])
    return made


def summary(rows: Sequence[Row]) -> list[str]:
    """The table for the docs."""
    found = []
    for row in rows:
        parts = (f"{value:.2f}" for value in row[6:12])
        memory = (f"{row.worker_pss_mb:.0f} MB", f"{row.ps_pss_mb:.0f} MB")
        speed, python = f"{row.env_steps_per_s:,.0f}", f"{row.python_share:.1%}"
        found.append((row.workers, speed, *parts, python, *memory, f"{row.start_s:.0f} s"))
    more = ("Python", "worker PSS", "ps PSS", "at work after")
    return machine.table(("workers", "env steps/s", *PARTS, "ps", *more), found)


def main() -> int:
    """Measure each size once, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--smoke", action="store_true", help="one size, in seconds")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/cost.csv"))
    arguments = parser.parse_args()
    rows: list[Row] = []
    shape = SMALL if arguments.smoke else SHAPE
    for workers in [2] if arguments.smoke else arguments.workers:
        rows.append(measure(workers, 2.0 if arguments.smoke else arguments.seconds, shape))
        print(f"{workers} workers: {rows[-1].env_steps_per_s:,.0f} env steps/s", flush=True)
        machine.write(arguments.output, rows)
    print("\n".join(summary(rows)))
    print(f"picture: {pictures.save(figure(rows), arguments.output.with_suffix('.png'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
