"""The processes of the cluster, their addresses, and the ports of this machine."""

import contextlib
import ipaddress
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from a3c.errors import RetryableError, UserError

JOBS = ("ps", "worker")
CHIEF = "worker-0"  # initialises the ps, saves, and decides when the run ends
EVALUATOR = "evaluator-0"  # plays checkpoints, if a run has one

# DNS can look up only labels of 1 to 63 characters.
_LABEL = "[A-Za-z0-9_-]{1,63}"
_ADDRESS = re.compile(
    rf"((?P<name>(?=[^:]{{1,253}}:){_LABEL}(\.{_LABEL})*\.?)"
    r"|\[(?P<v6>[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?)\]):(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True)
class Cluster:
    """The addresses of every process, `host:port`, in the order of their tasks."""

    ps: tuple[str, ...]
    workers: tuple[str, ...]

    def as_dict(self) -> dict[str, list[str]]:
        """The dictionary that `tf.train.ClusterSpec` takes."""
        return {"ps": list(self.ps), "worker": list(self.workers)}

    def addresses(self, job: str) -> tuple[str, ...]:
        return self.ps if job == "ps" else self.workers


@dataclass(frozen=True)
class Task:
    job: str
    index: int

    @property
    def name(self) -> str:
        """The name in logs, panes and file names, for example `worker-0`."""
        return f"{self.job}-{self.index}"

    @property
    def is_chief(self) -> bool:
        return self.name == CHIEF


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; UserError for any other form."""
    match = _ADDRESS.fullmatch(address)
    if match and 1 <= int(match["port"]) <= 65535:
        with contextlib.suppress(ValueError):
            if match["v6"]:
                ipaddress.IPv6Address(match["v6"])
            return match["v6"] or match["name"], int(match["port"])
    raise UserError(f"address {address!r} is refused: give host:port with a port from 1 to 65535")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def make_cluster(ps: Iterable[str], workers: Iterable[str], *, trusted_network: bool) -> Cluster:
    """A checked cluster: addresses are valid and unique, and loopback unless `trusted_network`."""
    cluster = Cluster(tuple(ps), tuple(workers))
    for job in JOBS:
        if not cluster.addresses(job):
            raise UserError(f"the cluster has no {job}: give at least one address in --{job}-hosts")
    seen: set[tuple[str, int]] = set()
    for address in (*cluster.ps, *cluster.workers):
        host, port = split_address(address)
        is_local = is_loopback(host)
        with contextlib.suppress(ValueError):
            host = str(ipaddress.ip_address(host))
        # A server binds its port on all interfaces: all loopback names are the same place.
        place = ("loopback" if is_local else host.lower().removesuffix("."), port)
        if place in seen:
            raise UserError(f"address {address} is given twice: every process needs its own")
        seen.add(place)
        if not trusted_network and not is_local:
            what = f"address {address} is not loopback: anyone who can reach it can run code there"
            raise UserError(f"{what}; give --trusted-network if you trust every host that can")
    return cluster


def free_ports(count: int) -> list[int]:
    """`count` different ports of this machine that no program uses."""
    with contextlib.ExitStack() as stack:
        ports = []
        try:
            for _ in range(count):
                listener = stack.enter_context(socket.socket())
                listener.bind(("", 0))
                ports.append(listener.getsockname()[1])
        except OSError as error:
            what = f"this machine has {len(ports)} free ports, not {count} ({error.strerror})"
            raise UserError(f"{what}: give fewer --workers") from None
        return ports


def count_up(hosts: Sequence[str], base: int, num_ps: int, *, trusted_network: bool) -> Cluster:
    """A checked cluster, the ps first, with ports that count up from `base` on every host."""
    used: Counter[str] = Counter()
    addresses = []
    for host in hosts:
        port, bare = base + used[host], f"[{host}]" if ":" in host else host
        if port > 65535:
            most = max(Counter(hosts).values())
            raise UserError(f"--base-port {base} leaves no room for {most} ports: give a lower one")
        used[host] += 1
        addresses.append(f"{bare}:{port}")
    return make_cluster(addresses[:num_ps], addresses[num_ps:], trusted_network=trusted_network)


def wait_for_peer(
    name: str,
    address: str,
    timeout_s: float,
    on_wait: Callable[[str], None] | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Block until something listens at `address`; RetryableError with its name after `timeout_s`.

    TensorFlow would wait for a missing peer forever, without a message. `pause` sleeps for some
    seconds; it returns true if this process must exit, and then RetryableError is raised too.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        patience_s = min(2.0, max(0.05, deadline - time.monotonic()))
        try:
            with socket.create_connection(split_address(address), timeout=patience_s) as connection:
                # The kernel may choose the free target port for this end: a connection to itself.
                if connection.getsockname() != connection.getpeername():
                    return
                reason = "nothing listens there"
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= deadline:
            what = f"{name} at {address} can't be reached after {timeout_s:g} s ({reason})"
            raise RetryableError(f"{what}: is it started?")
        if on_wait:
            on_wait(f"waiting for {name} at {address} ({reason})")
            on_wait = None  # it is told once
        if pause(0.1):
            raise RetryableError(f"stopped while waiting for {name} at {address}")
