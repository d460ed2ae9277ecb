"""What is wrong with the disk of a run, if anything."""

from __future__ import annotations

import os
from pathlib import Path

FULL_MB = 0.5
LOW_MB = 100.0


def trouble(path: Path) -> str | None:
    """A line about a disk that can't be written, or soon can't; None where all is well."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    if disk.f_flag & os.ST_RDONLY:
        return f"the disk of {path.name} is read-only: nothing is saved, training goes on"
    free_mb = disk.f_bavail * disk.f_frsize / 1e6
    if free_mb < FULL_MB or (disk.f_files and not disk.f_favail):
        return f"the disk of {path.name} is full: nothing is saved, training goes on"
    if free_mb < LOW_MB:
        return f"the disk of {path.name} has {free_mb:,.0f} MB left"
    return None
