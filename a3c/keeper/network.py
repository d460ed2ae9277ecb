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
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = _find(os.pread(descriptor, _MAX_BYTES, 0))
            if found is None:
                os.ftruncate(descriptor, 0)
                found = namespaces.make()
            own = identify(os.getpid())
            myself = _Holder(os.getpid(), own.birth if own else None, *found)
            os.write(descriptor, json.dumps(myself).encode() + b"\n")
        finally:
            os.close(descriptor)
    except NamespaceError as error:
        raise UserError(f"the run can't have its own network ({error}): {_REMEDY}") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another directory") from None
    return found


def _find(lines: bytes) -> Namespace | None:
    """Open the network of a running holder in the file's lines; None if there is none.

    A killed keeper can leave an incomplete line, and a holder may exit at any time.
    """
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, TypeError, OSError), contextlib.ExitStack() as opened:
            holder = _Holder(*json.loads(line))
            seen = identify(holder.pid)
            if seen is None or seen.birth is None or seen.birth != holder.birth:
                continue
            found = []
            for number in (n for n in (holder.network, holder.user) if n is not None):
                found.append(os.open(f"/proc/{holder.pid}/fd/{number}", os.O_RDONLY))
                opened.callback(os.close, found[-1])
            opened.pop_all()
            return Namespace(found[0], found[1] if found[1:] else None)
    return None
