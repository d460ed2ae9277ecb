"""Let only as many processes of a run start up at once as there are cores.

Importing TensorFlow keeps a core busy for seconds. Sixteen processes that do it at once on two
cores all get ready at the very end; in turn, the first are at work after a few seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

WAIT_S = 0.05
SAY_AFTER_S = 2.0
YIELD_S = 0.5
PATIENCE_S = 120.0  # a slot may be held by a process that hangs: then go ahead without one


@contextlib.contextmanager
def turnstile(directory: Path, slots: int | None = None, *, first: bool = True) -> Iterator[None]:
    """Hold one of the slots of a directory; they are freed even by SIGKILL.

    Those that are not to be `first` let the others step up to it. Where the directory can't be
    written everybody just goes ahead.
    """
    if not first:
        time.sleep(YIELD_S)
    count = slots or len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            files = [
                stack.enter_context((directory / f".start-{i}").open("w")) for i in range(count)
            ]
        except OSError:
            files = []
        began, said = time.monotonic(), False
        while files and not any(_take(file.fileno()) for file in files):
            waited_s = time.monotonic() - began
            if waited_s > PATIENCE_S:
                break
            if waited_s > SAY_AFTER_S and not said:
                log.info("waiting for its turn to start: %d of the run start at once", count)
                said = True
            time.sleep(WAIT_S)
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
