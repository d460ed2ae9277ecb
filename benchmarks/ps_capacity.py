"""The ps's cost of an update: rate, CPU time and bytes, by parameters, workers and ps.

    python -m benchmarks.ps_capacity --output benchmarks/results/ps-capacity.csv

Real ps processes (`worker.py --job ps`) and workers without environments, which only push and pull.
Every ps has a core of its own if there are enough, and workers use the remaining cores; on a
machine with no more cores than ps, workers use all cores. If the workers have too few cores to keep
the ps busy, the ps's CPU time an update gives its capacity: 1000 / CPU ms updates a second and
core.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.ps_capacity")

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import hand_made, machine, turns

PARAMETERS = (100_000, 677_172, 4_000_000)
WARM_UP_S = 2.0


class Case(NamedTuple):
    """The parameters of one measurement."""

    ps: int
    workers: int
    parameters: int
    wire_dtype: str


class Row(NamedTuple):
    """One measurement of a case."""

    time: str
    commit: str
    machine: str
    load: float
    repeat: int
    ps: int
    workers: int
    parameters: int
    wire_dtype: str
    updates_per_s: float
    ps_cpu_ms: float  # an update, summed over all ps
    busiest_ps_cpu_ms: float
    worker_cpu_ms: float
    kilobytes: float  # an update, both directions, from the kernel's counters
    capacity_per_s: float  # updates a second that would fill a core of the busiest ps


def cases(quick: bool) -> list[Case]:
    """All cases, or with `quick` only the most important one."""
    if quick:
        return [Case(1, 1, 677_172, "float32")]
    found = [Case(1, n, p, "float32") for p, n in itertools.product(PARAMETERS, (1, 2, 4))]
    found += [Case(n, 2, p, "float32") for n, p in itertools.product((2, 4), PARAMETERS[1:])]
    return found + [Case(1, 2, p, "float16") for p in PARAMETERS]


def measure(case: Case, repeat: int, seconds: float) -> Row:
    """Start a cluster, observe it for a while, and end it."""
    where = machine.here()
    with ExitStack() as stack:
        folder = stack.enter_context(turns.scratch())
        counts = [folder / f"worker-{i}.jsonl" for i in range(case.workers)]
        flags = ["--wire-dtype", case.wire_dtype]
        ps, workers = stack.enter_context(
            hand_made.cluster(case.ps, case.parameters, 0.0, counts, folder, flags)
        )
        workers.wait_until_counting()
        time.sleep(WARM_UP_S)
        before = [one.cpu_seconds() for one in (*ps, workers)]
        sent, begin = _bytes(), time.time()
        time.sleep(seconds)
        end, sent = time.time(), _bytes() - sent
        used = [one.cpu_seconds() - b for one, b in zip((*ps, workers), before, strict=True)]
        time.sleep(2 * turns.ROW_INTERVAL_S)
        rate = workers.rate(begin, end)
    each = [1000 * cpu / (rate * (end - begin)) for cpu in used]
    return Row(
        *where,
        repeat,
        *case,
        round(rate, 1),
        round(sum(each[:-1]), 3),
        round(max(each[:-1]), 3),
        round(each[-1], 3),
        round(sent / 1000 / (rate * (end - begin)), 1),
        round(1000 / max(each[:-1]), 1),
    )


def _bytes() -> int:
    with suppress(KeyError):
        return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)
    return 0


def summary(rows: Sequence[Row]) -> list[str]:
    """Medians over repeats, as a table for the docs."""
    found = []
    for case in dict.fromkeys(row[5:9] for row in rows):
        mine = [row for row in rows if row[5:9] == case]
        rate, ps, worker, size, most = (
            statistics.median(getattr(row, name) for row in mine)
            for name in (
                *("updates_per_s", "ps_cpu_ms", "worker_cpu_ms", "kilobytes", "capacity_per_s"),
            )
        )
        what = (*case[:2], f"{case[2]:,}", case[3])
        found.append(
            (*what, f"{rate:,.0f}", f"{ps:.2f}", f"{worker:.2f}", f"{size:,.0f}", f"{most:,.0f}")
        )
    titles = (
        "ps|workers|parameters|wire|updates/s|ps CPU ms|worker CPU ms|kB|a full core: updates/s"
    )
    return machine.table(titles.split("|"), found)


def main() -> int:
    """Measure every case several times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--smoke", action="store_true", help="one case, once, in seconds")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/ps-capacity.csv"))
    arguments = parser.parse_args()
    rows: list[Row] = []
    for repeat in range(1, 2 if arguments.smoke else 1 + arguments.repeats):
        for case in cases(arguments.smoke):
            rows.append(measure(case, repeat, 1.0 if arguments.smoke else arguments.seconds))
            print(f"{repeat} {case} {rows[-1].updates_per_s:,.0f} updates/s", flush=True)
            machine.write(arguments.output, rows)
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
