"""A cluster of real ps and of workers that only push and pull, each on cores of its own."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from a3c.cluster.topology import free_ports
from benchmarks.turns import Contestant


@contextmanager
def cluster(
    num_ps: int,
    parameters: int,
    pause_ms: float,
    counts: Sequence[Path],
    folder: Path,
    flags: Sequence[str] = (),
) -> Iterator[tuple[list[Contestant], Contestant]]:
    """The ps, and all workers as one; each worker writes one of the files `counts`.

    Each ps has a core of its own if there are enough. The workers share the remaining cores, or all
    cores if none remain. Every push makes an optimizer step.
    """
    hosts = [f"127.0.0.1:{port}" for port in free_ports(num_ps + len(counts))]
    where = ["--ps-hosts", ",".join(hosts[:num_ps]), "--worker-hosts", ",".join(hosts[num_ps:])]
    where += ["--run-dir", str(folder), "--samples-per-step", "0", *flags]
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:

        def start(name: str, on: Sequence[int], program: list[str], counted: Sequence[Path]) -> Any:
            pinned = ["taskset", "-c", ",".join(map(str, on or cores))]
            one = Contestant(name, [*pinned, sys.executable, *program, *where], counted)
            stack.callback(one.close)
            return one

        ps = [
            start(
                f"ps-{i}",
                [cores[i % len(cores)]],
                ["worker.py", "--job", "ps", "--task", str(i)],
                [],
            )
            for i in range(num_ps)
        ]
        pusher = ["-m", "benchmarks.pusher", str(parameters), str(pause_ms), *map(str, counts)]
        yield ps, start("workers", cores[num_ps:], pusher, counts)
