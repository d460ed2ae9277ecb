"""Let only as many processes of a run start up at once as there are cores.

Importing TensorFlow keeps a core busy for seconds. Sixteen processes that do it at once on two
cores all get ready at the very end; in turn, the first are at work after a few seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

WAIT_S = 0.05
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
        deadline = time.monotonic() + PATIENCE_S
        while files and not any(_take(file.fileno()) for file in files):
            if time.monotonic() > deadline:
                break
            time.sleep(WAIT_S)
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
