"""The process list as data, made before anything starts: hosts, addresses, command lines."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from a3c.cluster import ssh, topology
from a3c.cluster.hostfile import HERE, Host
from a3c.cluster.placement import Placement, directory_of
from a3c.cluster.topology import Cluster, Task
from a3c.config import ClusterConfig, Config, command_line
from a3c.errors import UserError
from a3c.keeper import spec as keeper_options
from a3c.keeper.spec import KeeperSpec
from a3c.run.rundir import REPOSITORY, RunDir, refusing, write_json

LOOPBACK = "127.0.0.1"
# Every process gets every address in one argument, and Linux limits an argument to 128 KiB.
MAX_PROCESSES = 5000
ISOLATED_BASE_PORT = 2222  # below the ports that the kernel uses for outgoing connections
HEARTBEAT_TIMEOUT_S = 120.0  # default
START_S = 300.0  # start-up time: imports take seconds, on a busy machine minutes
GRACE_S = 15.0  # between TERM and KILL
CHIEF_GRACE_S = 60.0  # the chief saves a checkpoint
FAR_GRACE_S = 75.0  # a remote keeper ends its process in order and reports it


@dataclass(frozen=True)
class Process:
    """One process of the cluster as it will be started."""

    name: str
    role: str
    task: int
    address: str
    argv: tuple[str, ...]
    environment: dict[str, str]  # added to the launcher's environment
    log: str
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    start_timeout_s: float = START_S
    grace_s: float = GRACE_S
    max_memory_mb: float = 0.0
    isolated: bool = False  # in the run's private network
    host: str = HERE
    directory: str | None = None  # working directory on another host

    @property
    def is_here(self) -> bool:
        """Whether it runs on the launcher's own machine."""
        return self.host == HERE

    def shell(self) -> str:
        """The process as a shell command on its host."""
        variables = [f"{k}={shlex.quote(v)}" for k, v in self.environment.items()]
        there = [f"cd {shlex.quote(self.directory)} &&"] if self.directory else []
        return " ".join([*there, "env", *variables, shlex.join(self.argv)])


@dataclass(frozen=True)
class Plan:
    """Every process of a run; `add` can start the `reserved` workers later, at their addresses."""

    run_dir: str
    processes: tuple[Process, ...]
    reserved: tuple[Process, ...] = ()
    hosts: tuple[Host, ...] = ()  # from the host file

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return asdict(self)

    def save(self, run: RunDir) -> None:
        """Write the plan into the run directory, for the launcher or the cockpit."""
        with refusing(run.path):
            write_json(run.path / "plan.json", self.as_dict())

    @staticmethod
    def load(run: RunDir) -> Plan:
        """The plan that a run was started with."""
        try:
            tables = json.loads((run.path / "plan.json").read_text())
            cast = _load_cast(tables["processes"])
            if not {"ps", "worker"} <= {process.role for process in cast}:
                raise ValueError("a ps or the workers are missing")
            hosts = [Host(**{**h, "options": tuple(h["options"])}) for h in tables.get("hosts", ())]
            reserved = _load_cast(tables.get("reserved", ()))
            return Plan(tables["run_dir"], cast, reserved, tuple(hosts))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"{run.path} has no readable plan.json: start it with --resume"
            ) from error

    def of_role(self, role: str) -> list[Process]:
        """The processes of one role."""
        return [process for process in self.processes if process.role == role]

    def host_of(self, process: Process) -> Host:
        """The host of a process on another host."""
        return next(host for host in self.hosts if host.name == process.host)

    def shell(self, process: Process) -> str:
        """A process as a shell command on this machine."""
        line = process.shell()
        return line if process.is_here else ssh.shell(self.host_of(process), line)


def _load_cast(tables: Iterable[dict[str, Any]]) -> tuple[Process, ...]:
    return tuple(Process(**{**table, "argv": tuple(table["argv"])}) for table in tables)


def choose_addresses(config: Config, *, isolated: bool = False) -> Cluster:
    """The addresses of all processes on this machine, or in the run's private network."""
    addresses = [f"{LOOPBACK}:{port}" for port in _choose_ports(config, isolated)]
    return Cluster(tuple(addresses[: config.cluster.ps]), tuple(addresses[config.cluster.ps :]))


def _choose_ports(config: Config, isolated: bool) -> list[int]:
    """Ports for every process: from `--base-port` on, checked, or any free ports.

    In a private network no other program has ports, so nothing is checked.
    """
    count = config.cluster.ps + config.cluster.addresses
    if count > MAX_PROCESSES:
        raise UserError(
            f"{count:,} processes are too many for one machine: give --workers {MAX_PROCESSES:,} "
            "at most, less --ps"
        )
    base = config.cluster.base_port or (ISOLATED_BASE_PORT if isolated else None)
    if base is None:
        return topology.free_ports(count)
    if base + count - 1 > 65535:
        raise UserError(f"--base-port {base} leaves no room for {count} ports: give a lower one")
    for port in range(base, base + count):
        if not isolated and not topology.port_is_free(port):
            raise UserError(f"port {port} is in use{_owner(port)}: give another --base-port")
    return list(range(base, base + count))


def choose_board_port(here: Cluster) -> int:
    """A free port for TensorBoard that the cluster doesn't use."""
    taken = [topology.split_address(address)[1] for address in (*here.ps, *here.workers)]
    return next(port for port in topology.free_ports(len(taken) + 1) if port not in taken)


def _owner(port: int) -> str:
    from a3c.process.listeners import port_owner

    owner = port_owner(port)
    return f" by {owner[1]}, pid {owner[0]}" if owner else ""


def make(
    config: Config,
    run: RunDir,
    here: Cluster,
    *,
    isolated: bool = False,
    evaluator: bool = False,
    tensorboard_port: int | None = None,
    placement: Placement | None = None,
) -> Plan:
    """The plan of a run whose processes have the addresses of `here`.

    Workers beyond `--workers` are reserved. `placement` gives the hosts of the processes.
    """
    hosts = placement.hosts if placement else {}
    cast: list[Process] = []
    reserved: list[Process] = []
    for task in (Task(job, i) for job in topology.JOBS for i in range(len(here.addresses(job)))):
        there = _there(hosts.get(task.name), run)
        comes_later = task.job == "worker" and task.index >= config.cluster.workers
        (reserved if comes_later else cast).append(
            _process(task, here, config, run, there, isolated)
        )
    if evaluator or config.run.render:
        cast.append(_evaluator(config, run))
    if tensorboard_port is not None:
        cast.append(_tensorboard(run, tensorboard_port))
    return Plan(str(run.path), tuple(cast), tuple(reserved), placement.file if placement else ())


class _There(NamedTuple):
    """The paths of a process on its host."""

    python: str
    worker: str
    run_dir: str
    fields: dict[str, Any]  # for its Process


def _there(host: Host | None, run: RunDir) -> _There:
    if host is None or host.is_here:
        return _There(sys.executable, str(REPOSITORY / "worker.py"), str(run.path), {})
    fields = {"host": host.name, "directory": host.directory}
    script = os.path.join(host.directory, "worker.py")  # noqa: PTH118
    return _There(host.python, script, directory_of(host, run.label), fields)


def _evaluator(config: Config, run: RunDir) -> Process:
    games = max(1, config.run.evaluation_episodes)
    script = str(REPOSITORY / "evaluate.py")
    watch = ("--watch",) if config.run.render else ()
    argv = (sys.executable, script, str(run.path), "--follow", "--episodes", str(games), *watch)
    return _extra("evaluator", argv, run, address="")


def _tensorboard(run: RunDir, port: int) -> Process:
    argv = (
        *(sys.executable, "-m", "a3c.launch.board", str(run.path / "events")),
        *("--port", str(port), "--link", str(run.board_link)),
    )
    process = _extra("tensorboard", argv, run, address=f"{LOOPBACK}:{port}")
    return replace(process, environment=process.environment | {"PYTHONPATH": str(REPOSITORY)})


def _extra(role: str, argv: tuple[str, ...], run: RunDir, address: str) -> Process:
    name = f"{role}-0"
    environment = topology.process_environment(topology.chosen_variables(), 1)
    return Process(name, role, 0, address, argv, environment, str(run.log(name)))


def _process(
    task: Task, here: Cluster, config: Config, run: RunDir, there: _There, isolated: bool
) -> Process:
    settings = config.cluster
    argv = (
        there.python,
        there.worker,
        *("--job", task.job, "--task", str(task.index)),
        *("--ps-hosts", ",".join(here.ps), "--worker-hosts", ",".join(here.workers)),
        *("--run-dir", there.run_dir),
        *command_line.to_flags(config),
    )
    return Process(
        name=task.name,
        role=task.job,
        task=task.index,
        address=here.addresses(task.job)[task.index],
        argv=argv,
        environment=topology.process_environment(
            topology.chosen_variables(),
            settings.threads(task.job),
            gpu=settings.uses_gpu(task.job),
        ),
        log=str(run.log(task.name)),
        **_limits(task, settings),
        isolated=isolated,
        **there.fields,
    )


def _limits(task: Task, settings: ClusterConfig) -> dict[str, Any]:
    """The time-outs and the memory limit of a process.

    The heartbeat time-out of a ps is `ps_timeout_s`; a worker, which is silent while it waits for a
    ps, gets twice that.
    """
    start_s = START_S + settings.connect_timeout_s  # wait for peers, then get ready itself
    if task.job == "ps":
        return {"heartbeat_timeout_s": settings.ps_timeout_s, "start_timeout_s": start_s}
    return {
        "start_timeout_s": start_s,
        "grace_s": CHIEF_GRACE_S if task.is_chief else GRACE_S,
        "heartbeat_timeout_s": settings.heartbeat_timeout_s or 2 * settings.ps_timeout_s,
        "max_memory_mb": settings.max_worker_memory_mb or 0.0,
    }


def keeper_command(process: Process, run: RunDir, **changes: Any) -> list[str]:
    """The command of the keeper that supervises a process.

    For a process on another host, the keeper supervises a connection to the remote keeper, whose
    command is `far_keeper_command`.
    """
    if not process.is_here:
        return keeper_options.command(_follower(process, run, **changes))
    return keeper_options.command(_spec(process, run, **changes))


def far_keeper_command(process: Process, host: Host, run: RunDir) -> list[str]:
    """The command of the remote keeper, which supervises a process on its own host."""
    there = RunDir(Path(directory_of(host, run.label)))
    far = replace(process, log=str(there.log(process.name)))
    spec = _spec(far, there, cwd=Path(host.directory))
    return keeper_options.command(spec, host.python)


def _identity(process: Process, run: RunDir) -> dict[str, Any]:
    return {
        "record": run.record(process.name),
        "name": process.name,
        "role": process.role,
        "task": process.task,
        "address": process.address,
        "log": Path(process.log),
    }


def _follower(process: Process, run: RunDir, **changes: Any) -> KeeperSpec:
    """The keeper of the connection to a process on another host.

    It has no heartbeat, because the connection may wait for its host without limit.
    """
    return KeeperSpec(
        **_identity(process, run),
        grace_s=FAR_GRACE_S,
        argv=(sys.executable, "-m", "a3c.hosts.near_end", str(run.path), process.name),
        env={"PYTHONPATH": str(REPOSITORY)},
        **changes,
    )


def _spec(process: Process, run: RunDir, **changes: Any) -> KeeperSpec:
    return KeeperSpec(
        **_identity(process, run),
        heartbeat=None if process.role == "tensorboard" else run.heartbeat(process.name),
        heartbeat_timeout_s=process.heartbeat_timeout_s,
        start_timeout_s=process.start_timeout_s,
        grace_s=process.grace_s,
        max_memory_mb=process.max_memory_mb,
        argv=process.argv,
        env=process.environment,
        network=run.network if process.isolated else None,
        **changes,
    )


def keeper_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's environment, with a PYTHONPATH that finds the keeper's code from any directory."""
    paths = [str(REPOSITORY), *filter(None, [base.get("PYTHONPATH")])]
    return {**base, "PYTHONPATH": os.pathsep.join(paths)}
