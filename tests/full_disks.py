"""Simulate a full disk for this process only."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def little_room(num_bytes: int) -> Iterator[None]:
    """Limit the size of files to `num_bytes`, for this process and its child processes.

    This is not a fixture, because pytest itself may write to a file between the phases of a test.
    Python ignores the signal of the limit, and the write fails.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
