"""The private network of a run: the first keeper creates it and the others join.

A file in the run directory lists the keepers that hold the network. A new keeper gets it from any
keeper in the list that is still running. A keeper holds the network until it exits. So the network
exists until the last keeper exits, and needs no cleanup.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from a3c.errors import UserError
from a3c.keeper import namespaces
from a3c.keeper.namespaces import Namespace, NamespaceError
from a3c.process.process_records import identify

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
_MAX_BYTES = 1 << 24
_REMEDY = "give --isolation off, and read SECURITY.md before that"


class _Holder(NamedTuple):
    """A keeper: its pid, its birth (which detects a reused pid), and its network descriptors."""

    pid: int
    birth: str | None
    network: int
    user: int | None


def join(path: Path) -> Namespace:
    """Join the network whose holders `path` lists, and add this keeper to the list.

    If no holder is running, create a new network. Call it from a process with one thread. Raises
    UserError.
    """
    try:
        with _locked(path) as descriptor:
            found = _taken_over(_read(descriptor))
            if found is None:
                os.ftruncate(descriptor, 0)
                found = namespaces.make()
            os.write(descriptor, json.dumps(_myself(found)).encode() + b"\n")
    except NamespaceError as error:
        raise UserError(f"the run can't have its own network ({error}): {_REMEDY}") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another directory") from None
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> list[_Holder]:
    """The holders in the file, including ended ones; incomplete lines are skipped."""
    holders = []
    for line in os.pread(descriptor, _MAX_BYTES, 0).splitlines():
        with contextlib.suppress(ValueError, TypeError):
            holders.append(_Holder(*json.loads(line)))
    return holders


def _myself(namespace: Namespace) -> _Holder:
    own = identify(os.getpid())
    return _Holder(os.getpid(), own.birth if own else None, *namespace)


def _is_alive(holder: _Holder) -> bool:
    seen = identify(holder.pid)
    return seen is not None and seen.birth is not None and seen.birth == holder.birth


def _taken_over(holders: Iterable[_Holder]) -> Namespace | None:
    """Open the network of a running holder; None if there is none. Holders may exit at any time."""
    for holder in filter(_is_alive, holders):
        numbers = [n for n in (holder.network, holder.user) if n is not None]
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            found = []
            for number in numbers:
                found.append(os.open(f"/proc/{holder.pid}/fd/{number}", os.O_RDONLY))
                opened.callback(os.close, found[-1])
            opened.pop_all()
            return Namespace(found[0], found[1] if found[1:] else None)
    return None
