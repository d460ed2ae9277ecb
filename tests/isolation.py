"""For tests of isolation: what this machine allows, lesser users, and who reaches what."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from a3c.run.rundir import REPOSITORY

CONNECT_INSIDE = """
import os, socket, sys
from a3c.keeper.namespaces import Namespace, enter
there = {kind: os.open(f"/proc/{sys.argv[1]}/ns/{kind}", os.O_RDONLY) for kind in ("net", "user")}
same = os.fstat(there["user"]).st_ino == os.stat("/proc/self/ns/user").st_ino
enter(Namespace(there["net"], None if same else there["user"]))
socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=10).close()
"""


def _said(command: list[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "no reason given"


_NO_NAMESPACE = _said([sys.executable, "-m", "a3c.keeper.namespaces"])
needs_namespaces = pytest.mark.skipif(
    bool(_NO_NAMESPACE), reason=f"the kernel forbids network namespaces: {_NO_NAMESPACE}"
)

# A user without any rights beyond those over their own files, also where the tests are run by root.
ORDINARY_USER = (
    ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
)
_NO_USER = _said([*(ORDINARY_USER or ["unshare", "--user"]), "true"])
needs_user_namespaces = pytest.mark.skipif(
    bool(_NO_USER), reason=f"the kernel forbids user namespaces: {_NO_USER}"
)

# A user whom the kernel gives no network namespace, as some distributions do by default.
FORBIDDEN = [
    *("unshare", "--user", "--map-root-user"),
    *("sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh"),
]


def connects(address: tuple[str, int]) -> bool:
    """Whether this process reaches a server."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as visitor:
        visitor.settimeout(5.0)
        return visitor.connect_ex(address) == 0


def addresses_here() -> list[str]:
    """Every address of this machine, those of loopback among them."""
    found = [a for addresses in psutil.net_if_addrs().values() for a in addresses]
    return [a.address for a in found if a.family in (socket.AF_INET, socket.AF_INET6)]


def connects_inside(pid: int, port: int) -> bool:
    """Whether a process in the same network as `pid` reaches a server there."""
    command = [sys.executable, "-c", CONNECT_INSIDE, str(pid), str(port)]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0


def network_of(pid: int, kind: str = "net") -> str:
    """What tells the namespace of a process from others."""
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def networks_in_use() -> set[str]:
    """The networks that any process is in, or holds a descriptor of."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [process / "ns/net", *(process / "fd").iterdir()]
        except OSError:
            continue
        for link in links:
            try:
                found.add(str(link.readlink()))
            except OSError:
                continue
    return found
