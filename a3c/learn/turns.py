"""Workers that share cores compute gradients in turns, as many at a time as there are cores.

Without turns, sixteen workers on two cores all compute at once, each at an eighth of its speed.
Meanwhile the others' pushes become optimizer steps, so gradients grow old. With turns, a gradient
takes as long as on a core of its own, and the worker first loads the newest weights, so gradients
are about as old as those of two workers. Workers with a small network take no turns: they would
wait longer than their gradients take.
"""

import contextlib
import fcntl
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from a3c.cluster.topology import Cluster, Task, split_address
from a3c.config import Config
from a3c.process.process_records import this_host

FAST_S = 0.004  # CPU time of a gradient and its push, below which there are no turns
TURN_TIMEOUT_S = 5.0  # after it a worker goes on without turns: the process it waits for may hang


def turns(
    directory: Path, cluster: Cluster, task: Task, config: Config
) -> contextlib.AbstractContextManager[bool]:
    """The turns of a worker; it never waits if its host has a core for each worker.

    Entering them returns whether the worker has waited, so others may have pushed. Each core has a
    file that one worker at a time locks, and the workers of a host are spread over these files.
    Without a ratio limit there are no turns, because the weights that played must compute the
    gradient.
    """
    hosts = [split_address(address)[0] for address in cluster.workers]
    mine = hosts[task.index]
    allowed = os.sched_getaffinity(0)
    cores = max(1, len(allowed) // config.cluster.worker_threads)
    if config.learning.ratio_limit and hosts.count(mine) > cores:
        core = hosts[: task.index].count(mine) % cores
        with contextlib.suppress(OSError):  # such as on a network file system without locks
            # Slurm may give each worker a core of its own.
            return Turns(directory / f".turn-{this_host()}-{min(allowed)}-{core}")
    return contextlib.nullcontext(False)


class Turns:
    """Turns of all processes that lock the same file; a process that dies gives up its turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._unlock()  # raises OSError where there are no locks
        self._thread = ThreadPoolExecutor(1)  # a call that locks has no time-out
        self._lock: Future[None] | None = None
        self._began, self._fastest_s = 0.0, math.inf

    def __enter__(self) -> bool:
        self._began = time.process_time()
        is_lock_pending = self._lock is not None and not self._lock.done()
        if self._fastest_s < FAST_S or is_lock_pending:
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        self._lock = self._thread.submit(fcntl.flock, self._file, fcntl.LOCK_EX)
        try:
            self._lock.result(TURN_TIMEOUT_S)
        except TimeoutError:
            self._lock.add_done_callback(lambda _: self._unlock())
        return True

    def __exit__(self, *_: object) -> None:
        self._fastest_s = min(self._fastest_s, time.process_time() - self._began)
        self._unlock()

    def _unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
