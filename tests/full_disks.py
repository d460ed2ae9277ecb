"""Full disks: for this process only, or small ones that root mounts for a while."""

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path


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


@contextlib.contextmanager
def mounted(*arguments: str) -> Iterator[None]:
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    with mounted("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)):
        yield


def fill(directory: Path) -> Path:
    """Fill a disk to its last byte; returns the file."""
    filler = directory / "filler"
    for size in (1 << 16, 1):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(size)):
                pass
    return filler
