"""Let a run's ps and chief start up before the others, and those in groups.

Importing TensorFlow keeps a core busy for seconds. Sixteen processes that do it at once on two
cores all get ready at the very end; if the ps and the chief, or what has `first`, need not share
their cores, they are at work after a few seconds while the others start.
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

FIRST_CORES = 2  # what ps and chief take
GROUP = 4  # others that start at once per core, once those have
WAIT_S = 0.1
YIELD_S = 1.0
SAY_AFTER_S = 2.0
PATIENCE_S = 120.0  # a slot may be held by a process that hangs: then go ahead without one


@contextlib.contextmanager
def turnstile(directory: Path, cores: int | None = None, *, first: bool = True) -> Iterator[None]:
    """Start up inside: at once if `first`, else when it is one's turn.

    While some are starting that are `first`, others get what cores these leave; then `GROUP` of
    them start at once per core. Turns are freed even by SIGKILL. Where the directory can't be
    written everybody just goes ahead.
    """
    count = cores or len(os.sched_getaffinity(0))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = (
            _open(directory / ".start-first", fcntl.LOCK_SH) if first else _wait(directory, count)
        )
    except OSError:
        held = None
    with held or contextlib.nullcontext():
        yield


def _wait(directory: Path, cores: int) -> IO[str] | None:
    """Wait for one's turn; None where that takes too long."""
    time.sleep(YIELD_S)  # let those that are first step up to it
    began, said = time.monotonic(), False
    while (held := _take_turn(directory, cores)) is None:
        waited_s = time.monotonic() - began
        if waited_s > PATIENCE_S:
            return None
        if waited_s > SAY_AFTER_S and not said:
            log.info("waiting for its turn to start: others of this run start up")
            said = True
        time.sleep(WAIT_S)
    return held


def _take_turn(directory: Path, cores: int) -> IO[str] | None:
    """A turn that is free; it ends when it is closed."""
    gate = _open(directory / ".start-first", fcntl.LOCK_EX | fcntl.LOCK_NB)
    if gate:
        gate.close()
    turns = GROUP * cores if gate else cores - FIRST_CORES
    tries = (_open(directory / f".start-{i}", fcntl.LOCK_EX | fcntl.LOCK_NB) for i in range(turns))
    return next((turn for turn in tries if turn), None)


def _open(path: Path, lock: int) -> IO[str] | None:
    """The file with a lock on it; None where somebody else has one that excludes it."""
    file = path.open("w")
    try:
        fcntl.flock(file.fileno(), lock)
    except OSError:
        file.close()
        return None
    return file
