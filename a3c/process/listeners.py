"""Whether other machines can reach a process, and who listens on a port."""

import contextlib
from pathlib import Path


def has_loopback_only(pid: int) -> bool | None:
    """Whether loopback is the only interface in a process's network; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    except OSError:
        return None
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
