"""A run on three hosts, through a host file: it trains, and lives through what hosts do to it.

One cluster on hosts of their own goes through all of it, test after test: the ps and a worker on
beta, the chief and the launcher on alpha, a worker and a free slot on gamma.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from a3c.hosts import near_end
from a3c.process.process_records import ProcessRecord
from a3c.run import rundir
from a3c.run.rundir import RunDir
from tests import not_none
from tests.faults.faulty_envs import PACED
from tests.faults.simulated_network import Host
from tests.hosts import lan
from tests.hosts.lan import Machine
from tests.runs import ENDLESS, goes_on, is_training, manifest, started, wait_until

WHY_NOT = lan.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

Launcher = subprocess.Popen[str]

PORTS = range(2222, 2227)
FLAGS = (
    *("--mode", "child", "--env-id", "CartPole-v1", "--hosts", "hosts.toml", "--trusted-network"),
    *("--run-dir", "runs/mine", "--log-interval", "0.5", "--evaluation-episodes", "0"),
)
ADD = ("add", "--run", "runs/mine")
PATIENT = ("--ps-timeout", "10", "--checkpoint-interval", "2")


class Net(NamedTuple):
    """The hosts by name, and somebody on the network outside."""

    stranger: Host
    alpha: Machine
    beta: Machine
    gamma: Machine

    @property
    def run(self) -> RunDir:
        return RunDir(self.alpha.root / "opt/a3c/runs/mine")

    @property
    def machines(self) -> tuple[Machine, ...]:
        return (self.alpha, self.beta, self.gamma)

    def launch(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.alpha.run(sys.executable, "launch_cluster.py", *arguments, check=check)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    names = ("alpha", "beta", "gamma")
    with lan.machines(tmp_path_factory.mktemp("hosts"), names) as (stranger, found):
        yield Net(stranger, *found)


def write_host_file(net: Net, address_of_gamma: str = "10.77.0.3") -> None:
    entries = [("here", "10.77.0.1", 1), ("beta", "10.77.0.2", 1), ("gamma", address_of_gamma, 2)]
    text = 'ps = "beta"\n' + "".join(
        f'[[host]]\nhost = "{name}"\naddress = "{address}"\nslots = {slots}\n'
        for name, address, slots in entries
    )
    (net.alpha.root / "opt/a3c/hosts.toml").write_text(text)


@pytest.fixture(scope="module")
def cluster(net: Net) -> Iterator[Launcher]:
    """A launcher whose three workers train; a fourth may come."""
    write_host_file(net)
    for machine in net.machines:
        firewall = ("-p", "tcp", "--dport", "2222:2299", "!", "-s", "10.77.0.0/24", "-j", "DROP")
        machine.run("iptables", "-I", "INPUT", *firewall)
    flags = (*FLAGS, *ENDLESS, *PACED, *PATIENT, "--workers", "3", "--max-workers", "4")
    command = net.alpha.command([sys.executable, "launch_cluster.py", *flags])
    said = net.alpha.root / "launcher.log"
    with said.open("w") as log, started(command, stdout=None, stderr=log) as (process,):
        wait_until(
            lambda: process.poll() is not None or net.run.metrics("worker-0").exists(),
            "the chief's metrics",
        )
        assert process.poll() is None, said.read_text()
        yield process


def far(net: Net, name: str) -> ProcessRecord:
    """The record of a process on another host, as it is known on the launcher's."""
    return not_none(not_none(near_end.read(near_end.path_of(net.run, name))).record)


def processes_of(machine: Machine) -> str:
    """The command lines of everything on a host that runs our code."""
    lines = machine.run("ps", "-eo", "args").stdout.splitlines()
    return "\n".join(line for line in lines if "worker.py" in line or "a3c." in line)


def test_every_fault_is_reported_before_the_start(net: Net) -> None:
    write_host_file(net, address_of_gamma="10.77.0.9")
    code = net.beta.root / "opt/a3c/envs.py"
    kept = code.read_text()
    listen = "import socket, sys; s = socket.create_server(('', 2223)); sys.stdin.read()"
    squat = net.beta.command([sys.executable, "-c", listen])
    with subprocess.Popen(squat, stdin=subprocess.PIPE):  # until its stdin is closed
        try:
            code.write_text(kept + "# mine\n")
            said = net.launch(*FLAGS, check=False)
        finally:
            code.write_text(kept)
    assert said.returncode == 2
    assert "beta   10.77.0.2  ps-0, worker-1" in said.stderr
    assert "beta: other code than here in /opt/a3c (envs.py): copy it there anew" in said.stderr
    assert "beta: port 2223 is in use" in said.stderr
    assert "beta doesn't reach worker-2 at 10.77.0.9:2222" in said.stderr
    assert "answer at 198.51.100.1 (here), 198.51.100.2 (beta)" in said.stderr
    assert not net.run.path.exists()

    net.gamma.crash()
    said = net.launch(*FLAGS, check=False)
    net.gamma.boot()
    assert said.returncode == 2
    assert "gamma: ssh fails" in said.stderr.splitlines()[-1]
    assert "try `ssh gamma true`" in said.stderr.splitlines()[-1]


def test_a_run_on_three_hosts_is_observed_from_one(net: Net, cluster: Launcher) -> None:
    assert "worker-3 starts on gamma, at 10.77.0.3:2223" in net.launch(*ADD).stdout
    wait_until(lambda: is_training(net.run.path, workers=4), "training on all hosts")
    status = json.loads(net.launch("status", "runs/mine", "--json").stdout)
    hosts = {p["name"]: p["host"] for p in status["processes"]}
    assert hosts == {"ps-0": "beta", "worker-0": "alpha", "worker-1": "beta"} | dict.fromkeys(
        ("worker-2", "worker-3"), "gamma"
    )
    assert {p["state"] for p in status["processes"]} == {"running"}
    logs = net.launch("logs", "ps-0", "--run", "runs/mine").stdout
    assert "connected to beta: ps-0 is started" in logs
    assert "serving at 10.77.0.2:2222" in logs
    wait_until(lambda: list(net.run.checkpoints.glob("*/manifest.json")), "a checkpoint")
    for machine in (net.beta, net.gamma):
        assert not (machine.root / "opt/a3c/runs/mine/checkpoints").exists()
    assert cluster.poll() is None


def test_no_port_of_the_run_answers_to_the_world_outside(net: Net, cluster: Launcher) -> None:
    places = list[tuple[str, int]]()
    for machine in net.machines:
        sockets = machine.run("ss", "-Hltn").stdout.splitlines()
        listening = {int(line.split()[3].rpartition(":")[2]) for line in sockets} - {22}
        assert listening
        places += [(machine.outside.address, port) for port in {*PORTS, *listening}]
    with ThreadPoolExecutor(len(places)) as pool:
        assert not any(pool.map(lambda place: net.stranger.reaches(*place), places))
    # It is no broken wire that keeps the stranger out.
    assert net.stranger.reaches(net.beta.outside.address, 22)
    assert cluster.poll() is None


def test_a_worker_that_came_later_leaves_in_order_on_sigterm(net: Net, cluster: Launcher) -> None:
    pid = far(net, "ps-0").pid
    # As when the machine goes down: everything of the worker gets the signal at once.
    net.gamma.run("pkill", "-TERM", "-f", "worker.py --job worker --task 3|keeper .*worker-3.json")
    wait_until(lambda: far(net, "worker-3").state == "stopped", "the end of it", timeout_s=15)
    assert "SIGTERM: leaving" in net.run.log("worker-3").read_text()
    wait_until(goes_on(net.run, "worker-0", "worker-1", "worker-2"), "the others' training on")
    assert far(net, "ps-0").pid == pid
    assert cluster.poll() is None


def test_lost_connections_end_nothing(net: Net, cluster: Launcher) -> None:
    names = ("ps-0", "worker-1", "worker-2")
    before = {name: far(net, name).pid for name in names}
    net.alpha.run("pkill", "-f", "^ssh -T")
    wait_until(goes_on(net.run, "worker-1", "worker-2"), "word from the others")
    assert {name: far(net, name).pid for name in names} == before
    assert "is already running" in net.run.log("worker-2").read_text()
    assert cluster.poll() is None


def test_a_host_that_was_cut_off_returns(net: Net, cluster: Launcher) -> None:
    net.gamma.link.conditions.cut = True
    began = time.monotonic()
    wait_until(goes_on(net.run, "worker-0", "worker-1"), "training without a host")
    wait_until(
        lambda: "no connection to gamma" in net.launch("status", "runs/mine").stdout,
        "word of the lost connection",
    )
    time.sleep(max(0.0, began + 15 - time.monotonic()))  # longer than --ps-timeout
    net.gamma.link.conditions.cut = False
    wait_until(goes_on(net.run, "worker-2"), "the host's return")
    assert far(net, "worker-2").restarts >= 1
    assert cluster.poll() is None


def test_the_host_of_the_ps_reboots(net: Net, cluster: Launcher) -> None:
    steps = manifest(net.run.path).step
    net.beta.crash()
    net.beta.boot()
    wait_until(goes_on(net.run, "worker-0", "worker-2"), "training after the reboot")
    wait_until(lambda: manifest(net.run.path).step > steps, "a new checkpoint")
    assert "restored the ps from" in net.run.log("worker-0").read_text()
    assert cluster.poll() is None


def test_stop_ends_everything_everywhere(net: Net, cluster: Launcher) -> None:
    assert "mine is stopped" in net.launch("stop", "runs/mine").stdout
    assert cluster.wait(timeout=60) == 0
    assert [processes_of(machine) for machine in net.machines] == ["", "", ""]
    assert manifest(net.run.path).reason == "interrupted"


def test_a_resumed_run_uses_the_same_hosts(net: Net) -> None:
    """Without `--hosts`: the run knows its own."""
    flags = ("--stop-at-return", "60", "--mode", "child", "--run-dir", "runs/mine", "--resume")
    done = net.launch(*flags, "--max-workers", "none")
    assert "gamma  10.77.0.3  worker-2" in done.stderr
    summary = json.loads(net.run.summary.read_text())
    assert (summary["state"], summary["solved"]) == ("done", True)
    assert rundir.read_config(net.run).cluster.workers == 3  # although there are four slots
    assert [processes_of(machine) for machine in net.machines] == ["", "", ""]
