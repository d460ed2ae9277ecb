"""A private network of hosts on this machine: namespaces on veth links to one bridge.

Each host has its own address, name, processes, home, /opt and sshd, and a second interface to the
outside network. None of it has a name on this machine: namespaces, devices and processes disappear
with the test's process, even if it crashes. Only root can create them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from a3c.run.rundir import REPOSITORY
from tests.hosts.links import Carrier, children, ip, listens, plain_frames, tc
from tests.namespaces import inside, new_namespace

PRIVATE, OUTSIDE = "10.77.0", "198.51.100"
_HOME = "/opt/home"
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

    def __init__(self, lan: Lan, number: int, name: str, root: Path) -> None:
        self.name = name
        self.number = number
        self.address = f"{PRIVATE}.{number}"
        self.outside_address = f"{OUTSIDE}.{number}"
        self.root = root
        self._lan = lan
        self.namespace = new_namespace()
        self._init: subprocess.Popen[bytes] | None = None
        self._plug_in()

    @property
    def network(self) -> str:
        """The path of its network namespace."""
        return f"/proc/{os.getpid()}/fd/{self.namespace}"

    def _plug_in(self) -> None:
        for bridge, device, address in (
            ("br0", "eth0", self.address),
            ("br1", "eth1", self.outside_address),
        ):
            port = f"{device}-{self.number}"
            self._lan.ip(
                f"link add {port} type veth peer name {device} netns {self.network}",
                f"link set {port} master {bridge} up",
            )
            ip(self.namespace, f"addr add {address}/24 dev {device}", f"link set {device} up")
        ip(self.namespace, "link set lo up")
        inside(self.namespace, lambda: plain_frames("eth0"))

    def boot(self) -> None:
        """Start sshd and wait until it listens."""
        enter = ["nsenter", f"--net={self.network}"]
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--uts", "--mount", "--mount-proc"]
        self._init = subprocess.Popen(
            [*_MORTAL, *enter, *apart, "sh", "-c", _BOOT, "sh", self.name, str(self.root)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while not inside(self.namespace, lambda: listens(self.address, 22)):
            assert time.monotonic() < deadline, f"{self.name}: no sshd"
            time.sleep(0.05)

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
        """The command that runs `argv` on this host."""
        assert self._init is not None
        first = children(self._init.pid)[0]
        enter = ["nsenter", f"--target={first}", "--net", "--pid", "--mount", "--uts"]
        there = ["env", "-u", "SSH_AUTH_SOCK", "-C", directory, f"HOME={_HOME}"]
        return [*enter, *there, *argv]

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end."""
        return subprocess.run(
            self.command(argv), capture_output=True, text=True, check=check, timeout=180
        )

    def python(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Python on this host, in the directory of the code."""
        return self.run(sys.executable, *argv, check=check)

    def cut(self) -> None:
        """Disconnect the host from the private network."""
        self._lan.ip(f"link set eth0-{self.number} down")

    def mend(self) -> None:
        """Reconnect the host."""
        self._lan.ip(f"link set eth0-{self.number} up")

    @contextlib.contextmanager
    def slow_link(self, delay_s: float, rate: str) -> Iterator[None]:
        """Limit each direction of the host's link to a delay and a rate."""
        with self._lan.detour(f"eth0-{self.number}", delay_s):
            self._lan.tc(f"qdisc add dev eth0-{self.number} root tbf rate {rate} {_BURST}")
            tc(self.namespace, f"qdisc add dev eth0 root tbf rate {rate} {_BURST}")
            try:
                yield
            finally:
                tc(self.namespace, "qdisc del dev eth0 root")
                self._lan.tc(f"qdisc del dev eth0-{self.number} root")

    def close(self) -> None:
        """End the host."""
        self.crash()
        os.close(self.namespace)


_BURST = "burst 32kbit latency 200ms"


class Lan:
    """The bridges that connect the hosts, and a stranger on the outside network."""

    def __init__(self) -> None:
        self.switch = new_namespace()
        self.stranger = new_namespace()
        self.ip("link set lo up", *(f"link add br{i} type bridge" for i in (0, 1)))
        self.ip(*(f"link set br{i} up" for i in (0, 1)))
        there = f"/proc/{os.getpid()}/fd/{self.stranger}"
        self.ip(f"link add stranger type veth peer name eth1 netns {there}")
        self.ip("link set stranger master br1 up")
        ip(self.stranger, f"addr add {OUTSIDE}.99/24 dev eth1", "link set eth1 up")

    def ip(self, *commands: str) -> None:
        """Run `ip` in the namespace of the bridges."""
        ip(self.switch, *commands)

    def tc(self, command: str) -> None:
        """Run `tc` in the namespace of the bridges."""
        tc(self.switch, command)

    def strangers_reach(self, machine: Machine, port: int) -> bool:
        """Whether a port of a host is reachable from the outside network."""
        return bool(inside(self.stranger, lambda: listens(machine.outside_address, port)))

    @contextlib.contextmanager
    def detour(self, port: str, delay_s: float) -> Iterator[None]:
        """Delay every frame between a port and the bridge, by forwarding it in Python."""
        self.ip("link add slow0 type veth peer name slow1", "link set slow1 master br0 up")
        self.ip("link set slow0 up", f"link set {port} nomaster")
        carrier = Carrier(self.switch, (port, "slow0"), delay_s)
        try:
            yield
        finally:
            carrier.close()
            self.ip(f"link set {port} master br0", "link del slow0")

    def close(self) -> None:
        """Release the bridges."""
        os.close(self.switch)
        os.close(self.stranger)


# --- all together ---------------------------------------------------------------------------------


def why_not() -> str:
    """Why this machine can't create such hosts; empty if it can."""
    if os.geteuid():
        return "hosts as namespaces want root"
    missing = [
        t
        for t in ("ip", "tc", "nsenter", "setpriv", "iptables", "pkill", "ssh-keygen")
        if not shutil.which(t)
    ]
    if not Path("/usr/sbin/sshd").exists():
        missing.append("sshd")
    if missing:
        packages = "openssh-server iproute2 iptables procps"
        return f"{' and '.join(missing)} missing: apt-get install {packages}"
    try:
        lan = Lan()
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None)
        return f"the kernel gives no namespaces, bridges or veth: {(said or error)!r}"
    lan.close()
    return ""


def copy_code(directory: Path) -> None:
    """Copy the code as a fresh clone of this tree would have it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = REPOSITORY / name
        if source.is_file() and source.suffix not in (".png", ".gif", ".svg", ".csv", ".jsonl"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, directory / name)


def _furnish(root: Path, names: Sequence[str], key: Path) -> None:
    """Create a host's files: its code, its /etc/hosts, and a home whose key opens the others.

    The home comes from /etc/passwd, where ssh looks for it: root's real home stays visible.
    """
    ssh = root / "opt" / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    shutil.copy(key, ssh / "id_ed25519")
    shutil.copy(f"{key}.pub", ssh / "authorized_keys")
    host_key = (key.parent / "host.pub").read_text().split()[:2]
    known = [f"{n},{PRIVATE}.{i} {' '.join(host_key)}" for i, n in enumerate(names, start=1)]
    (ssh / "known_hosts").write_text("\n".join(known) + "\n")
    lines = ["127.0.0.1 localhost", *(f"{PRIVATE}.{i} {n}" for i, n in enumerate(names, start=1))]
    (root / "hosts").write_text("\n".join(lines) + "\n")
    (root / "passwd").write_text(f"root:x:0:0:root:{_HOME}:/bin/sh\nsshd:x:100:65534::/run/sshd:\n")
    (root / "sshd_config").write_text(_SSHD_CONFIG.format(keys=key.parent))
    copy_code(root / "opt" / "a3c")


@contextlib.contextmanager
def machines(directory: Path, names: Sequence[str]) -> Iterator[tuple[Lan, list[Machine]]]:
    """Hosts with these names, running and connected to each other by ssh."""
    keys = directory / "keys"
    keys.mkdir(parents=True)
    for name in ("host", "user"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(generate, check=True)
    with contextlib.ExitStack() as stack:
        lan = Lan()
        stack.callback(lan.close)
        made = []
        for number, name in enumerate(names, start=1):
            _furnish(directory / name, names, keys / "user")
            made.append(Machine(lan, number, name, directory / name))
            stack.callback(made[-1].close)
            made[-1].boot()
        yield lan, made
