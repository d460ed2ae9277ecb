"""Let a run's ps and chief start up before its other processes.

Importing TensorFlow keeps a core busy for seconds. If sixteen processes import at once on fewer
cores, all become ready only at the end. If ps and chief start first, they work after a few seconds,
while the others start.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

WAIT_S = 0.1
YIELD_S = 1.0  # gives the first processes time to take the lock
SAY_AFTER_S = 2.0
PATIENCE_S = 120.0  # a process that holds the lock may hang


@contextlib.contextmanager
def start_in_order(directory: Path, *, first: bool, processes: int) -> Iterator[None]:
    """Run the start-up inside this context, in order.

    A process enters at once if it is `first`, or if the machine has a core for each of `processes`.
    The others wait until no first process is inside. A killed process releases its lock. If the
    directory can't be written, no process waits.
    """
    held = None
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        if first:
            held = _open(directory / ".start-first", fcntl.LOCK_SH)
        elif processes > len(os.sched_getaffinity(0)):
            _wait(directory / ".start-first")
    with held or contextlib.nullcontext():
        yield


def _wait(path: Path) -> None:
    """Wait until the lock is free, at most `PATIENCE_S`."""
    time.sleep(YIELD_S)
    began, said = time.monotonic(), False
    while (free := _open(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
        waited_s = time.monotonic() - began
        if waited_s > PATIENCE_S:
            return
        if waited_s > SAY_AFTER_S and not said:
            log.info("waiting until the ps and the chief have started")
            said = True
        time.sleep(WAIT_S)
    free.close()


def _open(path: Path, lock: int) -> IO[str] | None:
    """The locked file; None if another process holds a conflicting lock."""
    file = path.open("w")
    try:
        fcntl.flock(file.fileno(), lock)
    except OSError:
        file.close()
        return None
    return file
