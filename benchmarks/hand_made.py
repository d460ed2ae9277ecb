"""A cluster that starts each process itself, to pin it to cores and to observe it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from a3c.cluster.topology import free_ports
from benchmarks.turns import Contestant, side_by_side


class HandMade(NamedTuple):
    """The ps, and all workers as one."""

    ps: list[Contestant]
    workers: Contestant


@contextmanager
def cluster(
    num_ps: int,
    programs: Sequence[Sequence[str]],
    counts: Sequence[Path],
    folder: Path,
    flags: Sequence[str],
    *,
    pinned: bool = False,
) -> Iterator[HandMade]:
    """Start real ps and the programs of its workers; each worker writes one file of counts.

    Programs get the cluster's arguments after their own, without job and task. With `pinned`, each
    ps has a core of its own if there are enough. Workers share the remaining cores, or all cores if
    none remain.
    """
    hosts = [f"127.0.0.1:{port}" for port in free_ports(num_ps + len(counts))]
    where = ["--ps-hosts", ",".join(hosts[:num_ps]), "--worker-hosts", ",".join(hosts[num_ps:])]
    where += ["--run-dir", str(folder), *flags]
    cores = os.cpu_count() or 1
    with ExitStack() as stack:
        ps = []
        for i in range(num_ps):
            command = [sys.executable, "worker.py", "--job", "ps", "--task", str(i), *where]
            ps.append(Contestant(f"ps-{i}", _on_cores(command, [i % cores] if pinned else []), []))
            stack.callback(ps[-1].close)
        line = side_by_side([*program, *where] for program in programs)
        left = list(range(num_ps, cores)) if pinned else []
        workers = Contestant("workers", _on_cores(line, left), counts)
        stack.callback(workers.close)
        yield HandMade(ps, workers)


def pushers(parameters: int, pause_ms: float, counts: Sequence[Path]) -> list[list[str]]:
    """The command of workers without environments."""
    command = [sys.executable, "-m", "benchmarks.pusher", str(parameters), str(pause_ms)]
    return [[*command, *map(str, counts)]]


def _on_cores(command: Sequence[str], cores: Sequence[int]) -> list[str]:
    if not cores:
        return list(command)
    return ["taskset", "-c", ",".join(map(str, cores)), *command]
