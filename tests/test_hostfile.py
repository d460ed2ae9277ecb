"""Host files: who goes where; plans are in test_forms, what is refused in docs/bad-input.md."""

from typing import Any

from a3c.cluster import hostfile
from a3c.cluster.hostfile import ssh_command
from tests.fake_runs import configure

HERE = {"host": "here", "address": "10.77.0.1", "slots": 2}
BETA = {"host": "beta", "address": "10.77.0.2", "slots": 4}
GAMMA = {"host": "gamma", "address": "fd00::3", "slots": 10, "directory": "/opt/a3c"}


def tables(*hosts: dict[str, Any], **top: Any) -> dict[str, Any]:
    return {"host": [dict(host) for host in hosts], **top}


def test_slots_are_filled_in_order_and_this_host_comes_first() -> None:
    file = hostfile.parse(tables(BETA, HERE, GAMMA, ps=["beta", "gamma"]))
    config = configure(workers=7, ps=3, trusted_network=True, max_workers=16)
    placed = hostfile.place(file, config)
    hosts = [placed.hosts[f"worker-{i}"].name for i in range(16)]
    assert hosts == ["here"] * 2 + ["beta"] * 4 + ["gamma"] * 10
    assert [placed.hosts[f"ps-{i}"].name for i in range(3)] == ["beta", "gamma", "beta"]
    assert placed.cluster.ps == ("10.77.0.2:2222", "[fd00::3]:2222", "10.77.0.2:2223")
    assert placed.cluster.workers[:3] == ("10.77.0.1:2222", "10.77.0.1:2223", "10.77.0.2:2224")


def test_ssh_is_told_what_the_file_says_and_never_asks_for_a_password() -> None:
    mine = {"host": "ml@beta", "user": "ml", "port": 2200, "options": ["-i", "my key"]}
    beta = hostfile.parse(tables(HERE, {**BETA, **mine})).hosts[1]
    command = ssh_command(beta, ("/a b/python", "-V"), directory="/opt/my code")
    assert command[:4] == ["ssh", "-T", "-i", "my key"]
    assert command[-6:-1] == ["-p", "2200", "-l", "ml", "ml@beta"]
    assert command[-1] == "cd '/opt/my code' && exec '/a b/python' -V"
    assert "BatchMode=yes" in command
