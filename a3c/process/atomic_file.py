"""Write a file atomically: readers see the old contents or the new, never a part."""

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a private file; on OSError the old one stays. If `durable`, it survives power loss."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Return when the entries of a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
