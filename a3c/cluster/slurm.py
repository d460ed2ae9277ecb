"""The cluster of a Slurm job step, and this task in it, read from Slurm's variables.

The first `--ps` tasks of a step are the ps, all others are workers. No Slurm command is called.

variable                       fallback of the job, or meaning          example
-----------------------------  ---------------------------------------  -----------------
SLURM_STEP_NODELIST            SLURM_JOB_NODELIST                       node[01-03,7],big
SLURM_STEP_NUM_TASKS           SLURM_NTASKS                             17
SLURM_STEP_TASKS_PER_NODE      SLURM_TASKS_PER_NODE                     4(x4),1
SLURM_PROCID, SLURM_NODEID     this task, and its node in the list      5, 1
SLURM_DISTRIBUTION             default: block                           block, cyclic, plane=4
SLURM_JOB_ID                   ports, unless `--base-port` is set       1234
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence

from a3c.cluster.topology import Cluster, Task, make_cluster
from a3c.config import ClusterConfig
from a3c.errors import UserError

MAX_HOSTS = 10_000
# Below the ports that kernels use for outgoing connections; the job's number selects a range, so
# that jobs on one node seldom collide.
_FIRST_PORT, _PORTS_A_JOB, _JOBS = 10_000, 128, 156
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)


def place(environ: Mapping[str, str], settings: ClusterConfig) -> tuple[Cluster, Task]:
    """The cluster of this process's job step, and this process's task."""
    step = environ if "SLURM_STEP_NODELIST" in environ else _as_step(environ)
    hosts = expand_hosts(_take(step, "SLURM_STEP_NODELIST"))
    counts = expand_counts(_take(step, "SLURM_STEP_TASKS_PER_NODE"))
    tasks, me = _number(step, "SLURM_STEP_NUM_TASKS"), _number(environ, "SLURM_PROCID")
    if len(counts) != len(hosts) or sum(counts) != tasks:
        raise UserError(
            f"--cluster slurm: {tasks} tasks are not {sum(counts)} on {len(counts)} of "
            f"{len(hosts)} nodes: start it with srun"
        )
    if not 0 <= me < tasks or tasks <= settings.ps:
        raise UserError(
            f"--cluster slurm: task {me} of {tasks} has no place with {settings.ps} ps: "
            f"give srun --ntasks={settings.ps + 1} or more"
        )
    nodes = deal(counts, _chunk(environ.get("SLURM_DISTRIBUTION", "")))
    _check_node(environ, nodes[me])
    addresses = _addresses(hosts, nodes, _base_port(environ, settings))
    cluster = make_cluster(
        addresses[: settings.ps],
        addresses[settings.ps :],
        trusted_network=settings.trusted_network,
    )
    return cluster, Task("ps", me) if me < settings.ps else Task("worker", me - settings.ps)


def expand_hosts(text: str) -> list[str]:
    """The host names of a list: `n[1-2],n[08-10]-ib` is n1, n2, n08-ib, n09-ib, n10-ib."""
    items = _ITEM.findall(text)
    if ",".join(items) != text or not items:
        raise UserError(f"host list {reprlib.repr(text)} has no form that Slurm gives: mend it")
    hosts = [host for item in items for host in _expand_item(item)]
    if len(hosts) > MAX_HOSTS:
        raise UserError(f"host list of {len(hosts):,} hosts: give {MAX_HOSTS:,} at most")
    return hosts


def _expand_item(item: str) -> list[str]:
    """All names of one item; with several brackets, the last one counts fastest."""
    texts = [""]
    for place, part in enumerate(_BRACKETS.split(item)):
        choices = _numbers(part) if place % 2 else [part]
        if len(texts) * len(choices) > MAX_HOSTS:
            raise UserError(f"host list {reprlib.repr(item)}: give {MAX_HOSTS:,} hosts at most")
        texts = [text + choice for text in texts for choice in choices]
    return texts


def _numbers(text: str) -> list[str]:
    """The numbers in one pair of brackets, padded to the width of their range's first number."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise UserError(f"host list with [{reprlib.repr(text)}]: give ranges such as [1-4,07]")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """The number of tasks on each node: `4(x2),3` is 4, 4, 3."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        times = int(match[2] or 1) if match else 0
        if not match or not 0 < times <= MAX_HOSTS - len(counts):
            raise UserError(
                f"tasks per node {reprlib.repr(text)} have no form that Slurm gives: mend it"
            )
        counts += [int(match[1])] * times
    if sum(counts) > MAX_HOSTS:
        raise UserError(f"{sum(counts):,} tasks: give {MAX_HOSTS:,} at most")
    return counts


def deal(counts: Sequence[int], chunk: int | None) -> list[int]:
    """The node of each task; nodes take turns, with `chunk` tasks a turn, or all tasks if None."""
    left = list(counts)
    nodes: list[int] = []
    while any(left):
        for node, room in enumerate(left):
            taken = min(room, chunk or room)
            nodes += [node] * taken
            left[node] -= taken
    return nodes


def _chunk(distribution: str) -> int | None:
    """The number of tasks that a node gets per turn; None for all of its tasks."""
    word = re.split("[:,]", distribution.lower())[0]
    if word in ("", "block", "unknown", "unspecified", "*"):
        return None
    if word == "cyclic":
        return 1
    plane = re.fullmatch(r"plane=([1-9]\d{0,8})", word, re.ASCII)
    if plane is None:
        raise UserError(
            f"SLURM_DISTRIBUTION {reprlib.repr(distribution)} doesn't say which task is where: "
            "give srun --distribution=block"
        )
    return int(plane[1])


def _check_node(environ: Mapping[str, str], node: int) -> None:
    """Raise UserError if Slurm put this task on another node, where no peer would find it."""
    if "SLURM_NODEID" in environ and _number(environ, "SLURM_NODEID") != node:
        raise UserError(
            f"--cluster slurm: this task is on node {_number(environ, 'SLURM_NODEID')} of the "
            f"list, not on {node}: give srun --distribution=block"
        )


def _addresses(hosts: Sequence[str], nodes: Sequence[int], base: int) -> list[str]:
    """The address of each task; ports count up from `base` on every node."""
    used = [0] * len(hosts)
    addresses = []
    for node in nodes:
        addresses.append(f"{hosts[node]}:{base + used[node]}")
        used[node] += 1
    if base + max(used) - 1 > 65535:
        raise UserError(
            f"--base-port {base} leaves no room for {max(used)} ports: give a lower one"
        )
    return addresses


def _base_port(environ: Mapping[str, str], settings: ClusterConfig) -> int:
    if settings.base_port is not None:
        return settings.base_port
    return _FIRST_PORT + _PORTS_A_JOB * (_number(environ, "SLURM_JOB_ID") % _JOBS)


def _as_step(environ: Mapping[str, str]) -> dict[str, str]:
    """The job's variables under the names of the step's."""
    return dict(_renamed(environ))


def _renamed(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, old in (
        ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    ):
        if old in environ:
            yield name, environ[old]


def _take(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise UserError(f"--cluster slurm: {name} is missing: start it with srun, in a job")
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _take(environ, name)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(f"--cluster slurm: {name} {reprlib.repr(text)} is not a number: mend it")
    return int(text)
