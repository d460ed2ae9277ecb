"""Who is in the cluster: addresses, TF_CONFIG, Slurm, host files, ports, waiting for each other."""

import functools
import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from a3c.cluster import hostfile, plan, topology, which_task
from a3c.cluster.hostfile import ssh_command
from a3c.cluster.topology import Cluster, Task, make_cluster
from a3c.cluster.which_task import from_tf_config, resolve_slurm
from a3c.config import ClusterConfig
from a3c.errors import RetryableError
from a3c.process import process_records
from a3c.process.environment import chosen_variables, process_environment
from a3c.run.rundir import REPOSITORY, RunDir
from tests import Patch, refused
from tests.fake_runs import configure
from tests.runs import call

PS, WORKERS = ["127.0.0.1:1"], ["127.0.0.1:2", "127.0.0.1:3"]


def test_an_address_is_a_host_and_a_port() -> None:
    wanted = {
        "localhost:2222": ("localhost", 2222),
        "127.0.0.1:1": ("127.0.0.1", 1),
        "[::1]:65535": ("::1", 65535),
        "[fe80::1%eth0]:80": ("fe80::1%eth0", 80),
        "job-ps_0.train.svc.cluster.local:2222": ("job-ps_0.train.svc.cluster.local", 2222),
        "node7.:80": ("node7.", 80),
    }
    assert {address: topology.split_address(address) for address in wanted} == wanted


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "localhost", "localhost:", ":2222", "2222", "::1:2222", "[::1]", "[::1]2222"),
        *("[]:1", "[:1", "[localhost]:1", "[::1%]:1", "[::1%a\nb]:1", "[[::1]]:1", "[::1:1"),
        *("a:0", "a:65536", "a:-1", "a:+1", "a:1.0", "a: 1", "a:1 ", " a:1", "a b:1", "a:٣", "a:²"),
        *("http://a:1", "a/b:1", "a,b:1", "ä:1", "a\n:1", "a:1\n", "\ud800:1", "a:1:1"),
        *("a..b:1", ".:1", ".a:1", "x" * 64 + ":1", ".".join(["x" * 60] * 5) + ":1", "a:000001"),
    ],
)
def test_an_invalid_address_is_refused_with_its_text(address: str) -> None:
    for hosts in (([address], WORKERS), (PS, [*WORKERS, address])):
        what = f"{re.escape(repr(address))}.*: give host:port with a port from 1 to 65535"
        refused(what, make_cluster, *hosts, trusted_network=True)


@pytest.mark.parametrize(
    "pair",
    [
        ("localhost:5", "localhost:5"),
        ("localhost:5", "LOCALHOST:5"),
        ("localhost:5", "127.0.0.1:5"),  # a server takes its port on all interfaces
        ("127.0.0.1:5", "127.0.0.2:5"),
        ("[::1]:5", "[0:0::1]:5"),
        ("[::1]:5", "127.0.0.1:5"),
        ("node:5", "Node:05"),
        ("node.lan:5", "node.lan.:5"),
        ("[fe80::1]:5", "[FE80:0::1]:5"),
    ],
)
def test_an_address_that_is_given_twice_is_refused(pair: tuple[str, str]) -> None:
    said = re.escape(f"address {pair[1]} is given twice")
    for hosts in (([pair[0]], [pair[1]]), (["a:1"], [*pair]), ([*pair], ["a:1"])):
        refused(said, make_cluster, *hosts, trusted_network=True)


def test_addresses_that_others_can_reach_need_a_trusted_network() -> None:
    inside = ("localhost:5", "Localhost:5", "127.0.0.1:5", "127.9.9.9:5", "[::1]:5")
    outside = ("10.0.0.1:5", "0.0.0.0:5", "[::]:5", "[fe80::1]:5", "node:5", "127.0.0.1.evil.com:5")
    for address in inside:
        assert make_cluster(PS, [address], trusted_network=False).workers == (address,)
    for address in outside:
        said = refused("--trusted-network", make_cluster, PS, [address], trusted_network=False)
        assert address in said
        assert make_cluster(PS, [address], trusted_network=True).workers == (address,)


def read(task: Any, **jobs: Any) -> tuple[Cluster, Task]:
    text = json.dumps({"cluster": {"ps": PS, "worker": WORKERS, **jobs}, "task": task})
    return from_tf_config(text, trusted_network=False)


def test_tf_config_says_which_process_this_is() -> None:
    for task, wanted in (
        *(({"type": "worker", "index": index}, Task("worker", 1)) for index in (1, "1")),
        *((task, Task("ps", 0)) for task in ({"type": "ps", "index": 0}, {"type": "ps"})),
    ):
        assert read(task) == (Cluster(tuple(PS), tuple(WORKERS)), wanted)


@pytest.mark.parametrize("head", ["chief", "master"])
def test_a_chief_or_master_is_worker_0_and_the_workers_move_up(head: str) -> None:
    jobs = {head: ["127.0.0.1:9"]}
    made, chief = read({"type": head, "index": 0}, **jobs)
    assert made.workers == ("127.0.0.1:9", *WORKERS)
    assert (chief, chief.is_chief) == (Task("worker", 0), True)
    assert read({"type": "worker", "index": 0}, **jobs)[1] == Task("worker", 1)
    assert read({"type": "ps", "index": 0}, **jobs)[1] == Task("ps", 0)


def test_free_ports_are_free_and_all_different() -> None:
    ports = topology.free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        socket.create_server(("", port)).close()


def test_more_processes_than_the_machine_has_ports_are_refused() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
        "from a3c.cluster import topology; topology.free_ports(100)"
    )
    done = call(sys.executable, "-c", code, cwd=REPOSITORY)
    assert "UserError: this machine has" in done.stderr
    assert "not 100 (Too many open files): give fewer --workers" in done.stderr


def test_an_absent_peer_is_named_when_the_time_is_up() -> None:
    (port,) = topology.free_ports(1)
    said: list[str] = []
    began = time.monotonic()
    reached = rf"ps-0 at 127.0.0.1:{port} can't be reached after 0.25 s \(Connection refused\)"
    with pytest.raises(RetryableError, match=reached):
        topology.wait_for_peer("ps-0", f"127.0.0.1:{port}", 0.25, said.append)
    assert 0.25 <= time.monotonic() - began < 5
    assert said == [f"waiting for ps-0 at 127.0.0.1:{port} (Connection refused)"]
    with pytest.raises(RetryableError, match=r"ps-0 at .fe80::1%nowhere.:1 can't be reached"):
        topology.wait_for_peer("ps-0", "[fe80::1%nowhere]:1", 0.01)


def test_a_peer_that_never_answers_does_not_stretch_the_deadline() -> None:
    # Its queue of connections is full: more are left to wait.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        began = time.monotonic()
        with socket.create_connection(address), pytest.raises(RetryableError, match="timed out"):
            topology.wait_for_peer("ps-0", f"127.0.0.1:{address[1]}", 0.2)
        assert time.monotonic() - began < 1.5


def test_waiting_for_a_peer_ends_on_request() -> None:
    (port,) = topology.free_ports(1)
    pauses = iter((False, True))
    with pytest.raises(RetryableError, match=f"stopped while .* ps-0 at 127.0.0.1:{port}"):
        topology.wait_for_peer("ps-0", f"127.0.0.1:{port}", 60, pause=lambda _: next(pauses))


def test_a_connection_to_itself_is_no_peer(monkeypatch: Patch) -> None:
    """The kernel may give a connection the very port that it wants to reach."""
    connect = socket.create_connection

    def meet_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect(address, timeout, source_address=address)

    monkeypatch.setattr(socket, "create_connection", meet_itself)
    (port,) = topology.free_ports(1)
    with pytest.raises(RetryableError, match="can't be reached"):
        topology.wait_for_peer("ps-0", f"127.0.0.1:{port}", 0.01)


def test_a_process_gets_no_proxy_and_keeps_the_rest() -> None:
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "ftp_proxy")
    unwanted = {*names, *(name.upper() for name in names), "TF_GRPC_REUSE_PORT"}
    kept = {"PATH": "/bin", "HOME": "/root", "no_proxy": "*", "MY_PROXY": "x", "LANG": "C"}
    made = process_environment({**dict.fromkeys(unwanted, "1"), **kept}, 3)
    assert unwanted.isdisjoint(made)
    assert made.items() >= kept.items()
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    assert {made[name] for name in threads} == {"3"}


def test_a_gpu_is_hidden_unless_it_is_asked_for() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "3"}
    assert process_environment(base, 1)["CUDA_VISIBLE_DEVICES"] == "-1"
    assert process_environment(base, 1, gpu=True)["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in process_environment({}, 1, gpu=True)


def test_what_the_user_set_about_logging_and_onednn_stays() -> None:
    base = {"TF_CPP_MIN_LOG_LEVEL": "0", "GRPC_VERBOSITY": "DEBUG", "TF_ENABLE_ONEDNN_OPTS": "0"}
    made = process_environment({**base, "OMP_NUM_THREADS": "16"}, 1)
    assert made.items() >= base.items()
    assert made["OMP_NUM_THREADS"] == "1"  # a setting of the run: --worker-threads
    assert process_environment({}, 1)["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert chosen_variables({**base, "PATH": "/bin"}) == base


def test_a_plan_hands_on_what_the_user_set(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    config = configure(workers=1)
    made = plan.make(config, RunDir(tmp_path), plan.choose_addresses(config))
    assert {p.environment["TF_ENABLE_ONEDNN_OPTS"] for p in made.processes} == {"0"}


def test_tensorboard_gets_a_port_that_no_process_has() -> None:
    with mock.patch.object(topology, "free_ports", side_effect=[[1], [9]]):
        assert plan.choose_board_port(Cluster(("127.0.0.1:1",), ("127.0.0.1:2",))) == 9


def test_a_port_that_only_root_may_use_is_not_called_taken() -> None:
    with mock.patch("socket.create_server", side_effect=PermissionError):
        refused("port 80 is for root", plan.choose_addresses, configure(workers=1, base_port=80))


def test_with_isolation_low_ports_are_for_root_too(monkeypatch: Patch) -> None:
    choose = functools.partial(plan.choose_addresses, isolated=True)
    for user, base in ((1000, 1023), (0, 1023), (1000, 1024)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        settings = configure(workers=1, base_port=base)
        if (user, base) == (1000, 1023):
            said = "port 1023 is for root only: give a --base-port of 1024 or more"
            assert refused("1023", choose, settings) == said
        else:
            assert choose(settings).ps == (f"127.0.0.1:{base}",)


def test_the_owner_of_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert plan.port_owner(port) == (os.getpid(), psutil.Process().name())
    assert plan.port_owner(port) is None
    assert not process_records.has_loopback_only(2**31 - 1), "no such process"


HERE: dict[str, Any] = {"host": "here", "address": "10.77.0.1", "slots": 2}
BETA: dict[str, Any] = {"host": "beta", "address": "10.77.0.2", "slots": 4}
GAMMA = {"host": "gamma", "address": "fd00::3", "slots": 10, "directory": "/opt/a3c"}


def test_slots_are_filled_in_order_and_this_host_comes_first() -> None:
    file = hostfile.parse({"host": [BETA, HERE, GAMMA], "ps": ["beta", "gamma"]})
    config = configure(workers=7, ps=3, trusted_network=True, max_workers=16)
    placed = hostfile.place(file, config)
    hosts = [placed.hosts[f"worker-{i}"].name for i in range(16)]
    assert hosts == ["here"] * 2 + ["beta"] * 4 + ["gamma"] * 10
    assert [placed.hosts[f"ps-{i}"].name for i in range(3)] == ["beta", "gamma", "beta"]
    assert placed.cluster.ps == ("10.77.0.2:2222", "[fd00::3]:2222", "10.77.0.2:2223")
    assert placed.cluster.workers[:3] == ("10.77.0.1:2222", "10.77.0.1:2223", "10.77.0.2:2224")


def test_ssh_is_told_what_the_file_says_and_never_asks_for_a_password() -> None:
    mine = {"host": "ml@beta", "user": "ml", "port": 2200, "options": ["-i", "my key"]}
    beta = hostfile.parse({"host": [HERE, BETA | mine]}).hosts[1]
    command = ssh_command(beta, ("/a b/python", "-V"), directory="/opt/my code")
    assert command[:4] == ["ssh", "-T", "-i", "my key"]
    assert command[-6:-1] == ["-p", "2200", "-l", "ml", "ml@beta"]
    assert command[-1] == "cd '/opt/my code' && exec '/a b/python' -V"
    assert "BatchMode=yes" in command


TRUSTED = ClusterConfig(trusted_network=True)
STEP = {
    "SLURM_STEP_NODELIST": "rack[1-2]n[08-09]",
    "SLURM_STEP_NUM_TASKS": "10",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),2(x2)",
    "SLURM_PROCID": "4",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "4294967197",  # of ten digits; 156 * 27531840 + 157
    # Of the job around it, which may be larger.
    "SLURM_JOB_NODELIST": "rack[1-9]n08",
    "SLURM_NTASKS": "90",
    "SLURM_TASKS_PER_NODE": "10(x9)",
}
ALONE = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1"}
ALONE |= {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}


def test_host_lists_are_expanded_as_slurm_writes_them() -> None:
    wanted = {
        "n7": ["n7"],
        "n[08-10],gpu-1": ["n08", "n09", "n10", "gpu-1"],
        "n[1,3-4]-ib": ["n1-ib", "n3-ib", "n4-ib"],
        "r[1-2]n[1-2]": ["r1n1", "r1n2", "r2n1", "r2n2"],
        "n[098-101]": ["n098", "n099", "n100", "n101"],
        "n[9-10]": ["n9", "n10"],
    }
    assert {text: which_task.expand_hosts(text) for text in wanted} == wanted


def test_the_first_tasks_are_the_ps_and_ports_count_up_on_each_node() -> None:
    cluster, task = resolve_slurm(STEP, TRUSTED)
    base = 10_000 + 128  # jobs 1, 157, 313 ... have these
    assert cluster.ps == (f"rack1n08:{base}",)
    assert cluster.workers == (
        *(f"rack1n08:{base + i}" for i in (1, 2)),
        *(f"rack1n09:{base + i}" for i in (0, 1, 2)),
        *(f"rack2n08:{base + i}" for i in (0, 1)),
        *(f"rack2n09:{base + i}" for i in (0, 1)),
    )
    assert task == Task("worker", 3)
    settings = ClusterConfig(trusted_network=True, ps=2, base_port=7000)
    second = {"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_DISTRIBUTION": "block:cyclic"}
    cluster, task = resolve_slurm(STEP | second, settings)
    assert (cluster.ps, task) == (("rack1n08:7000", "rack1n08:7001"), Task("ps", 1))


def test_invalid_variables_are_refused_in_one_line() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"SLURM_STEP_NODELIST": "n[1-"}, "host list"),
        ({"SLURM_STEP_NODELIST": "n[4-1]"}, "host list"),
        ({"SLURM_STEP_NODELIST": "n[1-99999999]"}, "host list"),
        ({"SLURM_STEP_NODELIST": "n[1-9999][1-9999]"}, "has over 10,000 hosts"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3(x"}, "tasks per node"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x999999999)"}, "tasks are not 5 on 5 of 4 nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "10"}, "10 tasks are not 10 on 1 of 4 nodes"),
        ({"SLURM_STEP_NUM_TASKS": "ten"}, "SLURM_STEP_NUM_TASKS 'ten' is not a number"),
        ({"SLURM_PROCID": "10"}, "task 10 of 10 has no place"),
        (ALONE, "task 0 of 1 has no place with 1 ps: give srun --ntasks=2"),
        ({"SLURM_NODEID": "3"}, "--distribution=block"),
        ({"SLURM_DISTRIBUTION": "cyclic:block"}, "--distribution=block"),
    ]
    for changes, says in cases:
        refused(says, resolve_slurm, STEP | changes, TRUSTED)
    refused("--trusted-network", resolve_slurm, STEP, ClusterConfig())
