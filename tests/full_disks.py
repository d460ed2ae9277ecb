"""A disk that is full for this process alone."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def little_room(num_bytes: int) -> Iterator[None]:
    """Let no file grow beyond that, neither here nor in what is started here.

    No fixture: pytest itself may write to a file between the phases of a test. Python ignores the
    signal that comes with it, and the write fails.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
