"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_MOST_KEPT = 512 * 1024 * 1024
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Keep what is freed for the next message, instead of giving it back to the kernel.

    Every exchange needs the same buffers, as large as all parameters. With 677,172 parameters a
    third of the CPU time that an exchange took a worker, and a tenth of the ps's, went into asking
    the kernel for their pages anew. Where the library is not glibc, or the user has told it
    otherwise, nothing changes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    set_option(_M_TRIM_THRESHOLD, _MOST_KEPT)
    set_option(_M_MMAP_THRESHOLD, _MOST_KEPT)
