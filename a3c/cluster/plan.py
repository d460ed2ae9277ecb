"""The process list as data, made before anything starts: hosts, addresses, command lines."""

import contextlib
import itertools
import json
import os
import shlex
import socket
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from a3c.cluster import topology
from a3c.cluster.hostfile import BASE_PORT, Host, Placement, directory_of, ssh_shell
from a3c.cluster.topology import Cluster, Task
from a3c.config import Config, command_line
from a3c.errors import UserError
from a3c.keeper.spec import HERE, KeeperSpec, Process
from a3c.process.environment import chosen_variables, process_environment
from a3c.process.process_records import from_json, write_json
from a3c.run.rundir import REPOSITORY, RunDir, refusing

LOOPBACK = "127.0.0.1"
# Every process gets every address in one argument, and Linux limits an argument to 128 KiB.
MAX_PROCESSES = 5000
_LAUNCHER = Host(HERE, LOOPBACK, 0, sys.executable, str(REPOSITORY))
CHIEF_GRACE_S = 60.0  # the chief saves a checkpoint
FAR_GRACE_S = 75.0  # a remote keeper ends its process in order and reports it


@dataclass(frozen=True)
class Plan:
    """Every process of a run; `add` can start the `reserved` workers later, at their addresses."""

    run_dir: str
    processes: tuple[Process, ...]
    reserved: tuple[Process, ...] = ()
    hosts: tuple[Host, ...] = ()  # from the host file

    def save(self, run: RunDir) -> None:
        with refusing(run.path):
            write_json(run.path / "plan.json", self)

    @staticmethod
    def load(run: RunDir) -> "Plan":
        try:
            plan: Plan = from_json(Plan, json.loads((run.path / "plan.json").read_text()))
            if not plan.of_role("ps") or not plan.of_role("worker"):
                raise ValueError("a ps or the workers are missing")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            what = f"{run.path} has no readable plan.json"
            raise UserError(f"{what}: start it with --resume") from error
        return plan

    def of_role(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def of_keep(self) -> list[Process]:
        """The ps and workers that `keep` supervises, perhaps each on a host of its own."""
        return [
            process
            for process in self.processes
            if process.role in topology.JOBS
            and not self.hosts
            and not topology.is_loopback(topology.split_address(process.address)[0])
        ]

    def host_of(self, process: Process) -> Host:
        return next(host for host in self.hosts if host.name == process.host)

    def show(self, *, as_json: bool) -> str:
        """The plan as JSON, or a shell command on this machine for each process."""
        if as_json:
            return json.dumps(asdict(self), indent=1)
        lines = []
        for process in (*self.processes, *self.reserved):
            variables = [f"{k}={shlex.quote(v)}" for k, v in process.environment.items()]
            line = " ".join(["env", *variables, shlex.join(process.argv)])
            if not process.is_here:
                line = f"cd {shlex.quote(process.directory or '')} && {line}"
                line = ssh_shell(self.host_of(process), line)
            lines.append(f"# reserved for `add`: {line}" if process in self.reserved else line)
        return "\n".join(lines)


def choose_addresses(config: Config, *, isolated: bool = False) -> Cluster:
    """The addresses of all processes on this machine: free ports, or checked ones from a base."""
    num_ps, count = config.cluster.ps, config.cluster.ps + config.cluster.num_addresses
    if count > MAX_PROCESSES:
        what = f"{count:,} processes are too many for one machine"
        raise UserError(f"{what}: give --workers {MAX_PROCESSES:,} at most, less --ps")
    base = config.cluster.base_port or (BASE_PORT if isolated else None)
    if base is None:
        addresses = [f"{LOOPBACK}:{port}" for port in topology.free_ports(count)]
        return Cluster(tuple(addresses[:num_ps]), tuple(addresses[num_ps:]))
    cluster = topology.count_up([LOOPBACK] * count, base, num_ps, trusted_network=False)
    for port in range(base, base + count):
        try:
            if not isolated:
                socket.create_server(("", port)).close()
            elif port < 1024 and os.geteuid() != 0:  # each new network begins with this rule
                raise PermissionError
        except PermissionError:
            what = f"port {port} is for root only"
            raise UserError(f"{what}: give a --base-port of 1024 or more") from None
        except OSError:
            owner = port_owner(port)
            by = f" by {owner[1]}, pid {owner[0]}" if owner else ""
            raise UserError(f"port {port} is in use{by}: give another --base-port") from None
    return cluster


def port_owner(port: int) -> tuple[int, str] | None:
    """Pid and name of the process that listens on a TCP port; None if this user can't see it."""
    import psutil

    for found in psutil.net_connections(kind="tcp"):
        listens = found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN
        if found.pid and listens:
            with contextlib.suppress(psutil.Error):
                return found.pid, psutil.Process(found.pid).name()
    return None


def choose_board_port(cluster: Cluster) -> int:
    taken = {topology.split_address(address)[1] for address in (*cluster.ps, *cluster.workers)}
    ports = (topology.free_ports(1)[0] for _ in itertools.count())
    return next(port for port in ports if port not in taken)


def make(
    config: Config,
    run: RunDir,
    cluster: Cluster,
    *,
    isolated: bool = False,
    evaluator: bool = False,
    board: tuple[str, int] | None = None,
    placement: Placement | None = None,
) -> Plan:
    """The plan of a run whose processes have the addresses of `cluster`."""
    hosts = placement.hosts if placement else {}
    tasks = [Task(job, i) for job in topology.JOBS for i in range(len(cluster.addresses(job)))]
    made = [
        _process(task, cluster, config, run, hosts.get(task.name, _LAUNCHER), isolated)
        for task in tasks
    ]
    at_once = len(cluster.ps) + config.cluster.workers
    processes, reserved = made[:at_once], made[at_once:]
    python, environment = sys.executable, process_environment(chosen_variables(), 1)
    if evaluator or config.run.render or config.run.patience:
        games = str(max(1, config.run.evaluation_episodes))
        script = (str(REPOSITORY / "evaluate.py"), str(run.path), "--follow", "--episodes", games)
        argv = (python, *script, *(["--watch"] if config.run.render else []))
        log, limit_s = str(run.log(topology.EVALUATOR)), config.cluster.worker_timeout_s
        player = (topology.EVALUATOR, "evaluator", 0, "", argv, environment, log)
        processes.append(Process(*player, heartbeat_timeout_s=limit_s))
    if board is not None:
        host, port = board
        name, address = "tensorboard-0", f"{LOOPBACK}:{port}"
        argv = (python, "-P", "-m", "a3c.launch.tensorboard_server")
        argv += ("--logdir", str(run.path / "events"), "--host", host, "--port", str(port))
        environment = environment | {"PYTHONPATH": str(REPOSITORY)}
        log = str(run.log(name))
        processes.append(Process(name, "tensorboard", 0, address, argv, environment, log))
    file = placement.file.hosts if placement else ()
    return Plan(str(run.path), tuple(processes), tuple(reserved), file)


def _process(
    task: Task, cluster: Cluster, config: Config, run: RunDir, host: Host, isolated: bool
) -> Process:
    settings, is_ps = config.cluster, task.job == "ps"
    run_dir = str(run.path) if host.is_here else directory_of(host, run.label)
    return Process(
        name=task.name,
        role=task.job,
        task=task.index,
        address=cluster.addresses(task.job)[task.index],
        argv=(
            *(host.python, os.path.join(host.directory, "worker.py")),  # noqa: PTH118 - of another host
            *("--job", task.job, "--task", str(task.index)),
            *("--ps-hosts", ",".join(cluster.ps), "--worker-hosts", ",".join(cluster.workers)),
            *("--run-dir", run_dir),
            *command_line.to_flags(config),
        ),
        environment=process_environment(
            chosen_variables(), settings.threads(task.job), gpu=settings.uses_gpu(task.job)
        ),
        log=str(run.log(task.name)),
        heartbeat_timeout_s=settings.ps_timeout_s if is_ps else settings.worker_timeout_s,
        start_timeout_s=Process.start_timeout_s + settings.connect_timeout_s,  # waits for peers
        grace_s=CHIEF_GRACE_S if task.is_chief else Process.grace_s,
        max_memory_mb=0.0 if is_ps else settings.max_worker_memory_mb or 0.0,
        isolated=isolated,
        host=host.name,
        directory=None if host.is_here else host.directory,
    )


def keeper_command(process: Process, run: RunDir, **changes: Any) -> list[str]:
    """The command of the keeper that supervises a process here, or the connection to its host."""
    spec = keeper_spec(process, run)
    if not process.is_here:  # no heartbeat: the connection may wait for its host without limit
        argv = (sys.executable, "-P", "-m", "a3c.hosts.near_end", str(run.path), process.name)
        spec = replace(spec, argv=argv, environment={"PYTHONPATH": str(REPOSITORY)}, directory=None)
        spec = replace(spec, grace_s=FAR_GRACE_S, heartbeat=None, max_memory_mb=0.0)
    return replace(spec, **changes).command()


def keeper_spec(process: Process, run: RunDir) -> KeeperSpec:
    """The keeper of a process on its own host, where `run` is the run directory."""
    process = replace(process, log=str(run.log(process.name)))
    heartbeat = None if process.role == "tensorboard" else run.heartbeat(process.name)
    namespace, record = run.namespace if process.isolated else None, run.record(process.name)
    return KeeperSpec(**vars(process), record=record, heartbeat=heartbeat, namespace=namespace)
