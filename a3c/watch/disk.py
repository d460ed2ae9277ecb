"""Check the free space and the state of a run's disk."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

FULL_MB = 0.5
LOW_MB = 100.0


class Room(NamedTuple):
    """The free space of a disk."""

    free_mb: float
    free_files: int | None  # None if the file system has no limit
    read_only: bool


def room(path: Path) -> Room:
    """The free space of the disk that holds a path; raises OSError if the path doesn't exist."""
    disk = os.statvfs(path)
    return Room(
        # A file system without blocks, such as /proc, is never full.
        free_mb=disk.f_bavail * disk.f_frsize / 1e6 if disk.f_blocks else math.inf,
        free_files=disk.f_favail if disk.f_files else None,
        read_only=bool(disk.f_flag & os.ST_RDONLY),
    )


def trouble(path: Path) -> str | None:
    """A warning if the disk is read-only, full or nearly full; None otherwise."""
    try:
        left = room(path)
    except OSError:
        return None
    if left.read_only:
        return f"the disk of {path.name} is read-only: nothing is saved, training goes on"
    if left.free_mb < FULL_MB or left.free_files == 0:
        return f"the disk of {path.name} is full: nothing is saved, training goes on"
    if left.free_mb < LOW_MB:
        return f"the disk of {path.name} has {left.free_mb:,.0f} MB left"
    return None
