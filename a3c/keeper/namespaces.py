"""The private network of a run: a network namespace that has only loopback.

Processes inside reach each other; nothing outside reaches them, and they reach nothing outside.
Root creates a namespace directly. Other users create a user namespace around it that maps them to
their own user id: their files stay theirs, and programs gain no rights.

The keepers of ps and workers are in it, and their processes inherit it. The first keeper creates
it; a file in the run directory lists its members. A new keeper enters it from any member that still
runs. The network exists until the last keeper exits, and needs no cleanup. The launcher runs this
module to test whether the kernel allows it.

The process that creates, enters or joins a network must have one thread.
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path

from a3c.errors import UserError
from a3c.process.process_records import Identity, from_json, identify, is_alive

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def create() -> None:
    """Move this process into a new network with loopback up; an OSError names the call."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        # The kernel requires "deny" before an ordinary user may map a group.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "loopback") from None


def enter(member: Identity) -> bool:
    """Move this process into the network of another process; False if that has ended."""
    own, its = Path("/proc/self/ns"), Path(f"/proc/{member.pid}/ns")
    try:
        with contextlib.ExitStack() as stack:
            found = [
                (stack.enter_context((its / kind).open()), flag, own / kind)
                for kind, flag in (("user", _CLONE_NEWUSER), ("net", _CLONE_NEWNET))
                if (own / kind).exists()  # a kernel may be without user namespaces
            ]
            if not is_alive(member):  # the files may be those of a later process with its pid
                return False
            for file, flag, ours in found:
                if not os.path.samestat(os.fstat(file.fileno()), ours.stat()):
                    _call("setns", file.fileno(), flag)
    except OSError:
        if is_alive(member):
            raise
        return False  # it may exit at any time
    return True


def _call(name: str, *arguments: int) -> None:
    """Call a C library function, which Python has since 3.12 only; OSError unless it returns 0."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def join(path: Path) -> None:
    """Join the network whose members `path` lists, or create it; raises UserError."""
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "a+b") as file:  # noqa: PTH123
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            members: list[Identity] = []
            for line in file:
                with contextlib.suppress(ValueError, TypeError):  # half a line of a killed keeper
                    members.append(from_json(Identity, json.loads(line)))
            try:
                is_first = not any(map(enter, members))
                if is_first:
                    create()
            except OSError as error:
                why = ": ".join(filter(None, (error.filename, error.strerror)))
                remedy = "give --isolation off, and read SECURITY.md before that"
                raise UserError(f"the run can't have its own network ({why}): {remedy}") from None
            if is_first:
                file.truncate(0)
            own = identify(os.getpid())
            file.write(json.dumps(own and dataclasses.asdict(own)).encode() + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another directory") from None


def main() -> int:
    """Test a loopback connection in a new namespace; print what the kernel refuses.

    A shortage, which may pass, raises OSError.
    """
    try:
        create()
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise
        why = ": ".join(filter(None, (error.filename, error.strerror)))
        sys.stdout.write(f"{why or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
