"""The TCP sockets that processes listen on, and whether other machines can reach them."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
from pathlib import Path
from typing import NamedTuple

_LISTENING = "0A"  # the state's code in the kernel's tables


class Listener(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listeners(pid: int) -> list[Listener]:
    """The TCP addresses that a process listens on; psutil would read those of our own network."""
    proc, mine, found = Path(f"/proc/{pid}"), set(), set()
    try:
        for file in (proc / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed after it was listed
                mine.add(str(file.readlink()))
        tables = [table for table in (proc / "net/tcp", proc / "net/tcp6") if table.exists()]
        rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    for row in rows:
        if row[3] == _LISTENING and f"socket:[{row[9]}]" in mine:
            host, _, port = row[1].partition(":")
            words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
            address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
            found.add(Listener(str(address), int(port, 16)))
    return sorted(found)


def faces_outward(pid: int, among: list[Listener]) -> list[Listener]:
    """The listeners of a process that other machines can connect to."""
    if has_loopback_only(pid):
        return []
    outside = []
    for listener in among:
        address = ipaddress.ip_address(listener.host.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        if not (mapped or address).is_loopback:
            outside.append(listener)
    return outside


def has_loopback_only(pid: int) -> bool:
    """Whether loopback is the only interface in a process's network."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    except OSError:
        return False
    return {line.partition(":")[0].strip() for line in lines} <= {"lo"}


def port_owner(port: int) -> tuple[int, str] | None:
    """Pid and name of the process that listens on a TCP port; None if this user can't see it."""
    import psutil

    for found in psutil.net_connections(kind="tcp"):
        listens = found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN
        if found.pid and listens:
            with contextlib.suppress(psutil.Error):
                return found.pid, psutil.Process(found.pid).name()
    return None
