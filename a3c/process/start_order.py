"""Let a run's ps and chief start up before its other processes.

Importing TensorFlow keeps a core busy for seconds. Where a machine has fewer cores than processes,
sixteen that import at once are all ready at the very end. If ps and chief come first, they are at
work after a few seconds, while the others start.
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
YIELD_S = 1.0  # in which those that are first begin
SAY_AFTER_S = 2.0
PATIENCE_S = 120.0  # one of them may hang


@contextlib.contextmanager
def start_in_order(directory: Path, *, first: bool, processes: int) -> Iterator[None]:
    """Start up inside: at once if `first`, or where `processes` have a core each.

    The others wait until none of the first is inside. The lock of a process that is killed is
    freed. Where the directory can't be written, nobody waits.
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
    """Wait until nobody holds the lock, or for too long."""
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
    """The file with a lock on it; None where somebody else has one that excludes it."""
    file = path.open("w")
    try:
        fcntl.flock(file.fileno(), lock)
    except OSError:
        file.close()
        return None
    return file
