"""Build the ssh commands that run a command on another host."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from a3c.cluster.hostfile import Host

# BatchMode: nobody could type a password. ServerAlive: detects a dead connection.
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


def command(host: Host, argv: Sequence[str], *, directory: str | None = None) -> list[str]:
    """The local command that runs `argv` on a host, without a terminal, in `directory`.

    The host file's `options` come first, because ssh uses the first value of an option.
    """
    there = shlex.join(argv)
    if directory:
        there = f"cd {shlex.quote(directory)} && exec {there}"
    return ["ssh", "-T", *host.options, *_OPTIONS, *_whom(host), there]


def shell(host: Host, line: str) -> str:
    """A local shell command that runs `line` in a shell on the host."""
    return shlex.join(["ssh", *host.options, *_whom(host), line])


def _whom(host: Host) -> list[str]:
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    return [*port, *user, host.name]
