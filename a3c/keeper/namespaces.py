"""Create and enter a network namespace that has only loopback.

Processes inside reach each other; nothing outside reaches them, and they reach nothing outside.

A namespace exists as long as a process is in it or holds a descriptor of it. It has no name and
needs no cleanup. Root creates it directly. Other users create a user namespace around it that maps
them to their own user id: their files stay theirs, and programs gain no rights.

This file imports only the standard library, because the launcher runs it to test for support.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_MESSAGE_BYTES = 512


class NamespaceError(Exception):
    """The kernel refused an operation; the message says which and why."""


class Namespace(NamedTuple):
    """Descriptors of a network namespace and, if there is one, of the user namespace that owns it.

    Programs that this process starts don't inherit them.
    """

    network: int
    user: int | None


@contextlib.contextmanager
def signals_blocked() -> Iterator[set[int]]:
    """Block signals during a fork, so that the fork never runs our signal handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def make() -> Namespace:
    """Create a namespace with loopback up.

    A fork creates it, so that this process stays outside. Call it from a process with one thread.
    Raises NamespaceError.
    """
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
                    theirs.send(_describe(error).encode()[:_MESSAGE_BYTES])
                finally:
                    os._exit(0)
        said, descriptors, _, _ = socket.recv_fds(ours, _MESSAGE_BYTES, 2)
    os.waitpid(pid, 0)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not descriptors:
        raise NamespaceError(said.decode() or "the process that makes the namespace was killed")
    return Namespace(descriptors[0], descriptors[1] if descriptors[1:] else None)


def enter(namespace: Namespace) -> None:
    """Move this process, which must have one thread, into a namespace; raises OSError."""
    steps = [(namespace.user, _CLONE_NEWUSER), (namespace.network, _CLONE_NEWNET)]
    for descriptor, kind in steps:
        if descriptor is not None:
            _call("setns", descriptor, kind)


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
    """Call a C library function and raise OSError unless it returns 0.

    Python's `os` has `setns` and `unshare` only since 3.12.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _describe(error: OSError) -> str:
    return ": ".join(filter(None, (error.filename, error.strerror))) or str(error)


def main() -> int:
    """Create a namespace, enter it and test a loopback connection; print what fails."""
    try:
        enter(make())
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except (NamespaceError, OSError) as error:
        said = _describe(error) if isinstance(error, OSError) else str(error)
        sys.stdout.write(f"{said}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
