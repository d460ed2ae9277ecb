"""Assign each process a host of the host file and an address there."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from a3c.cluster import topology
from a3c.cluster.hostfile import Host, HostFile
from a3c.cluster.topology import Cluster, Task
from a3c.config import Config
from a3c.errors import UserError
from a3c.process.console import count

BASE_PORT = 2222  # below the ports that kernels use for outgoing connections


@dataclass(frozen=True)
class Placement:
    """The addresses of a cluster, and the host of each process by the process's name."""

    cluster: Cluster
    hosts: dict[str, Host]
    file: tuple[Host, ...]


def directory_of(host: Host, label: str) -> str:
    """The run's directory on another host."""
    return str(PurePosixPath(host.directory) / "runs" / label)


def place(file: HostFile, config: Config) -> Placement:
    """Fill the hosts' slots in order; ports count up from `--base-port` on each host."""
    _check(file, config)
    settings = config.cluster
    servers = itertools.islice(itertools.cycle(file.ps), settings.ps)
    slots = (host for host in file.hosts for _ in range(host.slots))
    chosen = {Task("ps", i): file.named(name) for i, name in enumerate(servers)}
    chosen |= {
        Task("worker", i): host for i, host in zip(range(settings.addresses), slots, strict=False)
    }
    used: Counter[str] = Counter()
    addresses: dict[str, list[str]] = {job: [] for job in topology.JOBS}
    for task, host in chosen.items():
        port = (settings.base_port or BASE_PORT) + used[host.name]
        if port > 65535:
            raise UserError(f"--base-port {settings.base_port} leaves no room: give a lower one")
        used[host.name] += 1
        addresses[task.job].append(host.at(port))
    made = topology.make_cluster(
        addresses["ps"], addresses["worker"], trusted_network=settings.trusted_network
    )
    return Placement(made, {task.name: host for task, host in chosen.items()}, file.hosts)


def _check(file: HostFile, config: Config) -> None:
    wanted = config.cluster.addresses
    if wanted > file.slots:
        flag = "--max-workers" if config.cluster.max_workers else "--workers"
        slots = count(file.slots, "slot")
        raise UserError(f"{flag} {wanted}: the hosts have {slots}: give fewer, or more slots")
    if config.cluster.isolation == "on":
        raise UserError("--isolation on: a network of one machine's own reaches no other host")
