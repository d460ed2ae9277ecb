"""Network namespaces without names: each ends with the processes that hold it, even on a crash."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def in_thread(act: Callable[[], T]) -> T:
    """Call `act` in a thread of its own, which may leave the process's network namespace."""
    done: list[T] = []
    failed: list[BaseException] = []

    def body() -> None:
        try:
            done.append(act())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def leave_network() -> int:
    """Move this thread to a new namespace; returns its descriptor. The thread should end soon."""
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)


def new_namespace() -> int:
    """A descriptor of a new network namespace."""
    return in_thread(leave_network)


def inside(namespace: int, act: Callable[[], T]) -> T:
    """Call `act` in a network namespace."""

    def enter() -> T:
        if _libc.setns(namespace, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        return act()

    return in_thread(enter)
