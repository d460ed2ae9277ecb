"""A private network of hosts on this machine, each with processes, a home, /opt and an sshd.

Each host has a second address on an outside network. None of it has a name on this machine: all
disappears with the test's process, even if it crashes. Only root can create them.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from a3c.run.rundir import REPOSITORY
from tests.faults import simulated_network
from tests.faults.simulated_network import NETWORK, Host, Wires
from tests.runs import call, children, wait_until

OUTSIDE = "198.51.100"
_HOME = "/opt/home"
_LISTING = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
_MORTAL = ("setpriv", "--pdeathsig", "KILL")  # killed when the thread that started it ends

_SSHD_CONFIG = """\
HostKey {keys}/host
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
LogLevel ERROR
Subsystem sftp internal-sftp
"""

# Commands of a host's first process before it becomes sshd.
_BOOT = """
set -e
hostname "$1"
mount --make-rprivate /
mount --bind "$2/opt" /opt
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/passwd" /etc/passwd
mount -t tmpfs tmpfs /run
mkdir /run/sshd
exec /usr/sbin/sshd -D -e -f "$2/sshd_config"
"""


class Machine:
    """A host; commands on it use its address, its name, its files and its processes."""

    def __init__(self, number: int, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.link = Host(f"{NETWORK}.{number}")
        self.outside = Host(f"{OUTSIDE}.{number}", beside=self.link)
        self._init: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--uts", "--mount", "--mount-proc"]
        boot = [*apart, "sh", "-c", _BOOT, "sh", self.name, str(self.root)]
        self._init = subprocess.Popen(
            [*_MORTAL, *self.link.command(boot)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: self.link.reaches(self.link.address, 22), f"{self.name}'s sshd", 30.0)

    def crash(self) -> None:
        """Kill every process at once, as in a power failure."""
        if self._init is not None:
            for pid in children(self._init.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            self._init.kill()
            self._init.wait()
            self._init = None

    def command(self, argv: Sequence[str], directory: str = "/opt/a3c") -> list[str]:
        assert self._init is not None
        first = children(self._init.pid)[0]
        enter = ["nsenter", f"--target={first}", "--net", "--pid", "--mount", "--uts"]
        there = ["env", "-u", "SSH_AUTH_SOCK", "-C", directory, f"HOME={_HOME}"]
        return [*enter, *there, *argv]

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return call(*self.command(argv), check=check)

    def close(self) -> None:
        self.crash()
        self.outside.close()
        self.link.close()


def why_not() -> str:
    """Why this machine can't create such hosts; empty if it can."""
    if why := simulated_network.why_not():
        return why
    for place in map(os.path.realpath, (sys.prefix, sys.base_prefix)):
        if place.startswith(("/opt/", "/run/")):
            return f"Python is in {place}: hosts have their own /opt and /run"
    needed = ("git", "ip", "nsenter", "setpriv", "iptables", "pkill", "ssh-keygen")
    missing = [tool for tool in needed if not shutil.which(tool)]
    if not Path("/usr/sbin/sshd").exists():
        missing.append("sshd")
    packages = "git openssh-server iproute2 iptables procps"
    if missing:
        return f"{' and '.join(missing)} missing: apt-get install {packages}"
    listed = call(*_LISTING, cwd=REPOSITORY)
    return listed.stderr.strip() if listed.returncode else ""


def _furnish(root: Path, names: Sequence[str], key: Path) -> None:
    """Create a host's files: its code, its /etc/hosts, and a home whose key opens the others.

    The home comes from /etc/passwd, where ssh looks for it: root's real home stays visible.
    """
    ssh = root / "opt" / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    shutil.copy(key, ssh / "id_ed25519")
    shutil.copy(f"{key}.pub", ssh / "authorized_keys")
    host_key = (key.parent / "host.pub").read_text().split()[:2]
    known = [f"{n},{NETWORK}.{i} {' '.join(host_key)}" for i, n in enumerate(names, start=1)]
    (ssh / "known_hosts").write_text("\n".join(known) + "\n")
    lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{i} {n}" for i, n in enumerate(names, start=1))]
    (root / "hosts").write_text("\n".join(lines) + "\n")
    (root / "passwd").write_text(f"root:x:0:0:root:{_HOME}:/bin/sh\nsshd:x:100:65534::/run/sshd:\n")
    (root / "sshd_config").write_text(_SSHD_CONFIG.format(keys=key.parent))
    # The code as a fresh clone of this tree would have it.
    for name in filter(None, call(*_LISTING, cwd=REPOSITORY, check=True).stdout.split("\0")):
        source, copy = REPOSITORY / name, root / "opt" / "a3c" / name
        if source.is_file() and source.suffix not in (".png", ".gif", ".svg", ".csv", ".jsonl"):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)


@contextlib.contextmanager
def machines(directory: Path, names: Sequence[str]) -> Iterator[tuple[Host, list[Machine]]]:
    """A stranger on the outside network, and hosts that are up and open to each other by ssh."""
    keys = directory / "keys"
    keys.mkdir(parents=True)
    for name in ("host", "user"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(generate, check=True)
    with contextlib.ExitStack() as stack:
        stranger = Host(f"{OUTSIDE}.99")
        stack.callback(stranger.close)
        made = []
        for number, name in enumerate(names, start=1):
            _furnish(directory / name, names, keys / "user")
            made.append(Machine(number, name, directory / name))
            stack.callback(made[-1].close)
        links = [host for machine in made for host in (machine.link, machine.outside)]
        stack.callback(Wires([stranger, *links]).close)
        for machine in made:
            machine.boot()
        yield stranger, made
