"""Small disks and other mounts, for a while; only root can."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(*arguments: str) -> Iterator[None]:
    """Something mounted; its place is the last argument."""
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A disk of its own for a directory."""
    with mounted("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)):
        yield
