"""The private network of a run: a network namespace that has only loopback.

Processes inside reach each other; nothing outside reaches them, and they reach nothing outside.
Root creates a namespace directly. Other users create a user namespace around it that maps them to
their own user id: their files stay theirs, and programs gain no rights.

The first keeper creates the network; a file in the run directory lists the keepers that hold it. A
new keeper gets it from any of them that is still running. The network exists until the last keeper
exits, and needs no cleanup. The launcher runs this module to test whether the kernel allows it.

The process that makes, enters or joins a network must have one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a3c.errors import UserError
from a3c.process.process_records import identify

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_MESSAGE_BYTES = 512
_MAX_FILE_BYTES = 1 << 24
_REMEDY = "give --isolation off, and read SECURITY.md before that"


class Namespace(NamedTuple):
    """Descriptors of a network namespace and of the user namespace that owns it, if any."""

    network: int
    user: int | None = None


@contextlib.contextmanager
def signals_blocked() -> Iterator[set[int]]:
    """Block signals during a fork, so that the fork never runs our signal handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def make() -> Namespace:
    """Create a namespace with loopback up, in a fork; UserError if the kernel refuses it."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, signals_blocked():
            pid = os.fork()
            if pid == 0:
                try:
                    ours.close()
                    kinds = _unshare()
                    found = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
                    socket.send_fds(theirs, [b"made"], found)
                except OSError as error:
                    what = filter(None, (error.filename, error.strerror))
                    theirs.send(": ".join(what).encode()[:_MESSAGE_BYTES])
                finally:
                    os._exit(0)
        said, descriptors, _, _ = socket.recv_fds(ours, _MESSAGE_BYTES, 2)
    os.waitpid(pid, 0)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not descriptors:
        raise UserError(said.decode() or "the process that makes the namespace was killed")
    return Namespace(*descriptors)


def enter(namespace: Namespace) -> None:
    """Move this process, which must have one thread, into a namespace; raises OSError."""
    if namespace.user is not None:
        _call("setns", namespace.user, _CLONE_NEWUSER)
    _call("setns", namespace.network, _CLONE_NEWNET)


def _unshare() -> list[str]:
    """Enter a new network namespace with loopback up; returns the kinds of new namespaces."""
    kinds, user, group = ["net"], os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        kinds.append("user")
        # The kernel requires "deny" before an ordinary user may map a group.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        except OSError as error:
            raise OSError(error.errno, error.strerror, "loopback") from None
    return kinds


def _call(name: str, *arguments: int) -> None:
    """Call a C library function, which Python has since 3.12 only; OSError unless it returns 0."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def join(path: Path) -> Namespace:
    """Join the network whose holders `path` lists, or create it; raises UserError."""
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = _find(os.pread(descriptor, _MAX_FILE_BYTES, 0))
            if found is None:
                os.ftruncate(descriptor, 0)
                found = make()
            own = identify(os.getpid())
            holder = (os.getpid(), own.birth if own else None, *found)
            os.write(descriptor, json.dumps(holder).encode() + b"\n")
        finally:
            os.close(descriptor)
    except UserError as error:
        raise UserError(f"the run can't have its own network ({error}): {_REMEDY}") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another directory") from None
    return found


def _find(lines: bytes) -> Namespace | None:
    """Open the network of a holder in the file's lines that still runs; None if there is none."""
    for line in lines.splitlines():
        # A killed keeper can leave an incomplete line, and a holder may exit at any time.
        with contextlib.suppress(ValueError, TypeError, OSError), contextlib.ExitStack() as opened:
            pid, birth, *numbers = json.loads(line)
            seen = identify(pid)
            if seen is None or seen.birth is None or seen.birth != birth:
                continue
            found = []
            for number in (n for n in numbers if n is not None):
                found.append(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY))
                opened.callback(os.close, found[-1])
            opened.pop_all()
            return Namespace(*found)
    return None


def main() -> int:
    """Test a loopback connection in a new namespace; print what fails."""
    try:
        enter(make())
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except (UserError, OSError) as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
