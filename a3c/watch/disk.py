"""What room the disk of a run has, and what is wrong with it, if anything."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

FULL_MB = 0.5
LOW_MB = 100.0


class Room(NamedTuple):
    """What a disk has left for us."""

    free_mb: float
    free_files: int | None  # None where the file system has no limit
    read_only: bool


def room(path: Path) -> Room:
    """The room on the disk that a path is on; raises OSError where the path isn't there."""
    disk = os.statvfs(path)
    return Room(
        # What has no blocks at all, as /proc, is no disk that could be full.
        free_mb=disk.f_bavail * disk.f_frsize / 1e6 if disk.f_blocks else math.inf,
        free_files=disk.f_favail if disk.f_files else None,
        read_only=bool(disk.f_flag & os.ST_RDONLY),
    )


def trouble(path: Path) -> str | None:
    """A line about a disk that can't be written, or soon can't; None where all is well."""
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
