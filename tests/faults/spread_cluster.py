"""A cluster whose every process is on a host of its own."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from a3c.cluster import plan as planning
from a3c.cluster.plan import Plan
from a3c.cluster.topology import Cluster
from a3c.config import command_line
from a3c.launch.supervisor import RecordedKeepers
from a3c.process.environment import code_environment
from a3c.process.process_records import ProcessRecord
from a3c.run.rundir import RunDir, create
from a3c.watch import status
from tests.faults import faulty_envs
from tests.faults.simulated_network import Host
from tests.runs import DEADLINE_S, ENDLESS, pid_of, record, wait_until

PORT = 2222


class HostCluster:
    """One ps on the first host, a worker on each other one."""

    def __init__(self, path: Path, book: Path, hosts: Sequence[Host], *flags: str) -> None:
        self.run = RunDir(path)
        self.ledger = book
        self.ledger.mkdir()
        self.num_workers = len(hosts) - 1
        self.hosts = {"ps-0": hosts[0]}
        self.hosts |= {f"worker-{i}": host for i, host in enumerate(hosts[1:])}
        mine = ("--workers", str(self.num_workers), "--trusted-network", "--log-interval", "0.2")
        config, _ = command_line.parse_config(
            [*mine, *ENDLESS, "--env-id", faulty_envs.COUNTED, *flags], "spread", "", lambda _: None
        )
        create(path, config, None, resume=False)
        ps, *workers = [f"{host.address}:{PORT}" for host in hosts]
        self.plan: Plan = planning.make(config, self.run, Cluster((ps,), tuple(workers)))
        self.plan.save(self.run)
        self._keepers = RecordedKeepers(self.run, lambda *_: None)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start_one(self, name: str) -> None:
        process = next(p for p in self.plan.processes if p.name == name)
        command = planning.keeper_command(process, self.run, parent=os.getpid())
        self._children[name] = subprocess.Popen(
            self.hosts[name].command(command),
            env={**code_environment(), faulty_envs.LEDGER: str(self.ledger)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill_keeper(self, name: str) -> None:
        pid = self.pid(name)
        self._children[name].kill()
        self._children[name].wait()
        wait_until(lambda: not pid or not psutil.pid_exists(pid), f"the end of {name}")

    def leave(self) -> None:
        """End everything in order, the ps last, so that the last checkpoint counts every step."""
        for process in reversed(self.plan.processes):
            self._keepers.end(process.name, now=False)
            self._children[process.name].wait(timeout=DEADLINE_S)

    def stop(self) -> None:
        for process in self.plan.processes:
            self._keepers.end(process.name, now=True)
        for child in self._children.values():
            child.terminate()  # a keeper that has no record yet
            child.wait(timeout=60)

    @property
    def step(self) -> int:
        return status.read(self.run).global_step or 0

    def record(self, name: str) -> ProcessRecord:
        return record(self.run, name)

    def wait_for_steps(self, what: str, steps: int = 2000) -> None:
        before = self.step
        wait_until(lambda: self.step >= before + steps, what)

    def pid(self, name: str) -> int | None:
        return pid_of(self.run, name)


@contextmanager
def host_cluster(path: Path, book: Path, hosts: list[Host], *flags: str) -> Iterator[HostCluster]:
    """A cluster at work in `path`, its ledger in `book`; gone in the end, whatever happens."""
    cluster = HostCluster(path, book, hosts, *flags)
    try:
        for process in cluster.plan.processes:
            cluster.start_one(process.name)
        yield cluster
    finally:
        cluster.stop()
