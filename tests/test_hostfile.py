"""Host files: who goes where, and plans; what is refused is in docs/bad-input.md."""

import json
import re
from pathlib import Path
from typing import Any

from a3c.cluster import hostfile
from a3c.cluster.hostfile import ssh_command
from tests.fake_runs import configure
from tests.runs import call_script

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


def test_a_dry_run_shows_the_host_of_each_process(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(
        'ps = "beta"\n[[host]]\nhost = "here"\naddress = "10.77.0.1"\nslots = 1\n'
        '[[host]]\nhost = "beta"\naddress = "10.77.0.2"\nslots = 15\n'
        'directory = "/opt/a3c"\npython = "bin/python"\noptions = ["-i", "my key"]\n'
    )
    run = ("--env-id", "CartPole-v1", "--run-dir", "/runs/mine", "--dry-run")
    flags = (*run, "--hosts", str(path), "--trusted-network")
    done = call_script("launch_cluster.py", *flags, "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout)["processes"][-1]
    assert (last["name"], last["host"]) == ("worker-15", "beta")
    assert last["argv"][:2] == ["/opt/a3c/bin/python", "/opt/a3c/worker.py"]
    place = last["argv"][last["argv"].index("--run-dir") + 1]
    assert re.fullmatch(r"/opt/a3c/runs/mine-[a-z2-9]{4}", place)

    shown = call_script("launch_cluster.py", *flags, "--workers", "2", "--max-workers", "3").stdout
    lines = shown.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["ssh", "env", "ssh", "#"]
    assert lines[0].startswith("ssh -i 'my key' beta 'cd /opt/a3c && env ")
