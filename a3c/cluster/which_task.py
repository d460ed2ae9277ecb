"""Determine the cluster and this process's task, from flags, TF_CONFIG or Slurm.

The first `--ps` tasks of a Slurm job step are the ps, all others are workers. No Slurm command is
called: the variables that Slurm sets for each task say enough.
"""

import argparse
import itertools
import json
import math
import os
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from a3c.cluster.topology import JOBS, Cluster, Task, count_up, make_cluster
from a3c.config import ClusterConfig, Config
from a3c.errors import UserError


def add_host_arguments(group: Any) -> None:
    group.add_argument("--ps-hosts", metavar="HOST:PORT,...", help="addresses of every ps")
    every = "addresses of every worker; worker-{}:2222 stands for worker-0:2222 and so on"
    group.add_argument("--worker-hosts", metavar="HOST:PORT,...", help=every)
    where = "where the addresses come from: auto: flags or TF_CONFIG; slurm: this Slurm job"
    group.add_argument("--cluster", choices=("auto", "slurm"), default="auto", help=where)


def resolve(arguments: argparse.Namespace, config: Config) -> tuple[Cluster, Task]:
    """The cluster and this process's task; flags with hosts have priority over TF_CONFIG."""
    given = (arguments.ps_hosts, arguments.worker_hosts) != (None, None)
    named = [getattr(arguments, name, None) for name in ("process", "job", "task")]
    is_named = any(value is not None for value in named)
    flags = "--job, --task" if hasattr(arguments, "job") else "PROCESS"
    if arguments.cluster == "slurm":
        if given or is_named:
            raise UserError(f"--cluster slurm: leave out {flags} and hosts: Slurm gives them")
        return resolve_slurm(os.environ, config.cluster)
    if not given and "TF_CONFIG" in os.environ:
        if is_named:
            what = f"TF_CONFIG gives this process's task: leave out {flags}"
            raise UserError(f"{what}, or give --ps-hosts and --worker-hosts too")
        trusted = config.cluster.trusted_network
        return from_tf_config(os.environ["TF_CONFIG"], trusted_network=trusted)
    for name in ("process", "job", "task", "ps_hosts", "worker_hosts"):
        if getattr(arguments, name, "") is None:
            flag = "PROCESS" if name == "process" else "--" + name.replace("_", "-")
            raise UserError(f"{flag} is missing: give it, or set TF_CONFIG")
    cluster = from_hosts(arguments.ps_hosts, arguments.worker_hosts, config.cluster)
    job, index = arguments.job, arguments.task
    size = len(cluster.addresses(job))
    if not 0 <= index < size:
        raise UserError(f"--task {index} is out of range: the cluster has {size} {job}")
    return cluster, Task(job, index)


def from_hosts(ps_hosts: str, worker_hosts: str, settings: ClusterConfig) -> Cluster:
    """The cluster of two comma-separated lists; an address with `{}` stands for all of its job."""
    ps, workers = (
        [
            address.replace("{}", str(number))
            for address in filter(None, map(str.strip, text.split(",")))
            for number in range(count if "{}" in address else 1)
        ]
        for text, count in ((ps_hosts, settings.ps), (worker_hosts, settings.num_addresses))
    )
    return make_cluster(ps, workers, trusted_network=settings.trusted_network)


def from_tf_config(text: str, *, trusted_network: bool) -> tuple[Cluster, Task]:
    """Cluster and task from TF_CONFIG; a `chief` or `master` is worker 0, before the others."""
    try:
        tables = json.loads(text)
    except (ValueError, RecursionError) as error:
        fact = "TF_CONFIG is not valid JSON"
        raise UserError(f"{fact}: {str(error).splitlines()[0]}; fix it") from None
    for key in ("cluster", "task"):
        if not isinstance(tables, dict) or not isinstance(tables.get(key), dict):
            raise UserError(f"TF_CONFIG has no table {key!r}: give cluster and task")
    jobs = {job: tables["cluster"].get(job, []) for job in (*JOBS, "chief", "master")}
    for job, addresses in jobs.items():
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise UserError(f"TF_CONFIG: cluster.{job} is not a list of host:port texts")
    heads = jobs["chief"] + jobs["master"]
    cluster = make_cluster(jobs["ps"], heads + jobs["worker"], trusted_network=trusted_network)
    job, index = tables["task"].get("type"), tables["task"].get("index", 0)
    if not isinstance(job, str) or job not in jobs:
        fact = f"TF_CONFIG: task type {reprlib.repr(job)} is unknown"
        raise UserError(f"{fact}: give ps, worker or chief")
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 9:
        index = int(index)
    if type(index) is not int or not 0 <= index < len(jobs[job]):
        what = f"TF_CONFIG: task index {reprlib.repr(index)} is out of range"
        raise UserError(f"{what}: the cluster has {len(jobs[job])} {job}")
    before = {"master": len(jobs["chief"]), "worker": len(heads)}
    return cluster, Task("ps" if job == "ps" else "worker", index + before.get(job, 0))


def resolve_slurm(environ: Mapping[str, str], settings: ClusterConfig) -> tuple[Cluster, Task]:
    names = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS")
    if "SLURM_STEP_NODELIST" not in environ and "SLURM_JOB_NODELIST" in environ:
        # A task outside of a step has only the variables of its job.
        names = ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS")
    hosts, listed = expand_hosts(_take(environ, names[0])), _take(environ, names[1])
    counts: list[int] = []  # of `4(x2),3`: 4, 4, 3
    for part in listed.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part, re.ASCII)
        if not match:
            what = f"tasks per node {reprlib.repr(listed)} are not in a form of Slurm"
            raise UserError(f"{what}: correct it")
        counts += [int(match[1])] * min(int(match[2] or 1), len(hosts) + 1)
    tasks, me = _number(environ, names[2]), _number(environ, "SLURM_PROCID")
    if len(counts) != len(hosts) or sum(counts) != tasks:
        there = f"{sum(counts)} on {len(counts)} of {len(hosts)} nodes"
        raise UserError(f"--cluster slurm: {tasks} tasks are not {there}: start it with srun")
    if not 0 <= me < tasks or tasks <= settings.ps:
        what = f"--cluster slurm: task {me} of {tasks} has no place with {settings.ps} ps"
        raise UserError(f"{what}: give srun --ntasks={settings.ps + 1} or more")
    distribution = environ.get("SLURM_DISTRIBUTION", "")
    if not re.fullmatch(r"((block|unknown|unspecified|\*)([:,].*)?)?", distribution, re.I):
        what = f"SLURM_DISTRIBUTION {reprlib.repr(distribution)} is not supported"
        raise UserError(f"{what}: give srun --distribution=block")
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    # On another node no peer would find this task. Slurm doesn't always name the distribution.
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else nodes[me]
    if node != nodes[me]:
        what = f"--cluster slurm: this task is on node {node} of the list, not on {nodes[me]}"
        raise UserError(f"{what}: give srun --distribution=block")
    base = settings.base_port
    if base is None:
        # Below the ports that kernels use for outgoing connections. The job's number selects one of
        # 156 ranges of 128 ports, so that jobs on one node seldom collide.
        base = 10_000 + 128 * (_number(environ, "SLURM_JOB_ID") % 156)
    places, trusted = [hosts[node] for node in nodes], settings.trusted_network
    cluster = count_up(places, base, settings.ps, trusted_network=trusted)
    return cluster, Task("ps", me) if me < settings.ps else Task("worker", me - settings.ps)


def expand_hosts(text: str) -> list[str]:
    """The host names of a list: `n[1-2],n[08-10]-ib` is n1, n2, n08-ib, n09-ib, n10-ib."""
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(items) != text or not items:
        raise UserError(f"host list {reprlib.repr(text)} is not in a form of Slurm: correct it")
    hosts: list[str] = []
    for item in items:
        parts = enumerate(re.split(r"\[([^\[\]]*)\]", item))  # every second part was in brackets
        choices = [expand_ranges(part) if number % 2 else [part] for number, part in parts]
        if math.prod(map(len, choices)) > 10_000:
            raise UserError(f"host list {reprlib.repr(item)} has over 10,000 hosts: correct it")
        hosts += map("".join, itertools.product(*choices))
    return hosts


def expand_ranges(text: str) -> list[str]:
    """The numbers of `8-10,07`, padded to the width of their range's first number."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < 10_000:
            raise UserError(f"host list with [{reprlib.repr(text)}]: give ranges such as [1-4,07]")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers


def _take(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise UserError(f"--cluster slurm: {name} is missing: start it with srun, in a job")
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _take(environ, name)
    if not (text.isascii() and text.isdigit() and len(text) < 11):
        raise UserError(f"--cluster slurm: {name} {reprlib.repr(text)} is not a number: fix it")
    return int(text)
