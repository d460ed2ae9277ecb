"""Settings of the C library for freed memory."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_MOST_KEPT = 512 * 1024 * 1024
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Keep freed memory for the next message, instead of returning it to the kernel.

    Every exchange needs the same buffers, as large as all parameters. With 677,172 parameters,
    getting their pages from the kernel again took a third of a worker's CPU time for an exchange,
    and a tenth of the ps's. Nothing changes if the library is not glibc, or if the user has set
    glibc's own variables.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    set_option(_M_TRIM_THRESHOLD, _MOST_KEPT)
    set_option(_M_MMAP_THRESHOLD, _MOST_KEPT)
