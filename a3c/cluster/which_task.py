"""Determine the cluster and this process's task, from flags, TF_CONFIG or Slurm."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from a3c.cluster import slurm
from a3c.cluster.topology import (
    JOBS,
    Cluster,
    Task,
    check_task,
    from_tf_config,
    make_cluster,
    split_hosts,
)
from a3c.config import ClusterConfig, Config
from a3c.errors import UserError

PLACE = "{}"  # placeholder for the number of a process in its address


def add_host_arguments(group: Any) -> None:
    """Add the arguments for the addresses of the cluster's processes."""
    group.add_argument("--ps-hosts", metavar="HOST:PORT,...", help="addresses of every ps")
    group.add_argument(
        "--worker-hosts",
        metavar="HOST:PORT,...",
        help="addresses of every worker; worker-{}:2222 stands for worker-0:2222 and so on",
    )
    group.add_argument(
        "--cluster",
        choices=("auto", "slurm"),
        default="auto",
        help="who says where: auto: the flags, or TF_CONFIG; slurm: the job that this is a task of",
    )


def add_task_arguments(group: Any) -> None:
    """Add the arguments that select this process."""
    group.add_argument("--job", choices=JOBS, help="ps or worker")
    group.add_argument("--task", type=int, metavar="I", help="number of this process in its job")


def place(
    arguments: argparse.Namespace, config: Config, environ: Mapping[str, str] = os.environ
) -> tuple[Cluster, Task]:
    """The cluster and this process's task; flags have priority over TF_CONFIG.

    `keep` has no flags `--job` and `--task`, so TF_CONFIG or Slurm must give its task.
    """
    given = (arguments.ps_hosts, arguments.worker_hosts) != (None, None)
    if arguments.cluster == "slurm":
        if given or getattr(arguments, "job", None) or getattr(arguments, "task", None):
            raise UserError(
                f"--cluster slurm: leave out {_task_flags(arguments)} and hosts: Slurm says them"
            )
        return slurm.place(environ, config.cluster)
    if not given and "TF_CONFIG" in environ:
        trusted = config.cluster.trusted_network
        return from_tf_config(environ["TF_CONFIG"], trusted_network=trusted)
    missing = [
        "--" + name.replace("_", "-")
        for name in ("job", "task", "ps_hosts", "worker_hosts")
        if hasattr(arguments, name) and getattr(arguments, name) is None
    ]
    if not hasattr(arguments, "job"):
        missing.insert(0, "PROCESS")
    if missing:
        raise UserError(f"{missing[0]} is missing: give it, or set TF_CONFIG")
    cluster = from_hosts(arguments.ps_hosts, arguments.worker_hosts, config.cluster)
    return cluster, check_task(cluster, arguments.job, arguments.task)


def _task_flags(arguments: argparse.Namespace) -> str:
    return "--job, --task" if hasattr(arguments, "job") else "PROCESS"


def from_hosts(ps_hosts: str, worker_hosts: str, settings: ClusterConfig) -> Cluster:
    """The cluster of two comma-separated lists of addresses; `expand` reads the lists."""
    return make_cluster(
        expand(ps_hosts, settings.ps),
        expand(worker_hosts, settings.addresses),
        trusted_network=settings.trusted_network,
    )


def expand(text: str, count: int) -> list[str]:
    """The addresses of a list; an address with `{}` stands for `count` addresses, from 0."""
    return [
        address.replace(PLACE, str(number))
        for address in split_hosts(text)
        for number in range(count if PLACE in address else 1)
    ]
