"""What users get wrong, as they get it wrong: one line, exit code 2, and nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import REPOSITORY

HOSTS = ("--ps-hosts", "127.0.0.1:2222", "--worker-hosts", "127.0.0.1:2223")


def refused(script: str, *arguments: str, cwd: Path, **variables: str) -> str:
    """Run a script that must refuse; the one line it says. Fails where anything was written."""
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / script), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", **variables},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not [path for path in cwd.rglob("*") if path.suffix != ".pyc"]
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--env-id", "CartPole-v7"), ("CartPole-v7", "CartPole-v1")),
        (("--env-id", "ALE/Pongg-v5"), ("ALE/Pongg-v5", "ALE/Pong-v5")),
        (("--env-id", "nowhere.at.all:Id-v0"), ("nowhere",)),
        (("--preset", "cartpol"), ("cartpol", "cartpole")),
        (("--rollout-length", "0"), ("--rollout-length", "0", "from 1")),
        (("--learning-rate", "-1"), ("--learning-rate", "-1", "above 0")),
        (("--envs-per-worker", "0"), ("--envs-per-worker", "0", "from 1")),
        (("--workers", "two"), ("--workers", "two", "whole number")),
        (("--gamma", "nan"), ("--gamma", "NaN")),
        (("--network", "resnet"), ("resnet", "a3c-ff")),
        (("--wrokers", "2"), ("--wrokers", "--workers")),
        (("--actions", "0", "2", "9", "--env-id", "CartPole-v1"), ("actions", "9")),
        (("--base-port", "65535"), ("65535",)),
        (("--resume",), ("no run",)),
        (("--config", "none.toml"), ("none.toml",)),
    ],
)
def test_the_launcher_refuses(
    arguments: tuple[str, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    line = refused("launch_cluster.py", *arguments, cwd=tmp_path)
    assert all(word in line for word in named), line


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[learning]\nlerning_rate = 1.0\n", ("learning.lerning_rate", "learning_rate")),
        ("[lerning]\ngamma = 1.0\n", ("lerning", "learning")),
        ("[learning]\ngamma = '0.9'\n", ("learning.gamma", "0.9")),
        ("[run]\nseed = true\n", ("run.seed", "true")),
        ("[run\n", ("not valid TOML",)),
    ],
)
def test_a_configuration_file_is_refused(text: str, named: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    work = tmp_path / "work"
    work.mkdir()
    line = refused("launch_cluster.py", "--config", str(file), cwd=work)
    assert all(word in line for word in named), line


def test_dict_observations_are_refused(tmp_path: Path) -> None:
    module = tmp_path / "dicty.py"
    module.write_text(
        "import gymnasium\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Dict(x=gymnasium.spaces.Box(0, 1))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "gymnasium.register('Dicty-v0', Env)\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    line = refused(
        "launch_cluster.py", "--env-id", "dicty:Dicty-v0", cwd=work, PYTHONPATH=str(tmp_path)
    )
    assert "Dict" in line


def tf_config(index: object, workers: list[str], job: str = "worker") -> str:
    """A TF_CONFIG with one ps."""
    cluster = {"ps": ["127.0.0.1:2222"], "worker": workers}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", ("not valid JSON",)),
        ("[]", ("cluster",)),
        (tf_config(1, ["127.0.0.1:2223"]), ("index 1", "1 worker")),
        (tf_config(-1, ["127.0.0.1:2223"]), ("index -1",)),
        (tf_config(0, ["127.0.0.1:2222"]), ("127.0.0.1:2222", "twice")),
        (tf_config(0, ["127.0.0.1:70000"]), ("127.0.0.1:70000",)),
        (tf_config(0, ["10.1.2.3:2223"]), ("10.1.2.3:2223", "--trusted-network")),
        (tf_config(0, ["127.0.0.1:2223"], "boss"), ("boss",)),
    ],
)
def test_tf_config_is_refused(text: str, named: tuple[str, ...], tmp_path: Path) -> None:
    line = refused("worker.py", cwd=tmp_path, TF_CONFIG=text)
    assert all(word in line for word in named), line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ("--job", "TF_CONFIG")),
        (("--job", "chief"), ("chief",)),
        (("--job", "worker", "--task", "3", *HOSTS), ("--task 3", "1 worker")),
        (("--job", "ps", "--task", "x", *HOSTS), ("--task", "x")),
    ],
)
def test_a_worker_refuses(
    arguments: tuple[str, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    line = refused("worker.py", *arguments, cwd=tmp_path)
    assert all(word in line for word in named), line


def test_a_busy_port_is_named_and_its_owner_left_alone(tmp_path: Path) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        line = refused(
            "launch_cluster.py",
            *("--env-id", "CartPole-v1", "--isolation", "off", "--base-port", str(port)),
            cwd=tmp_path,
        )
        assert str(port) in line
        assert str(os.getpid()) in line


def test_refusing_needs_no_tensorflow() -> None:
    code = (
        "import sys, launch_cluster\n"
        "try: launch_cluster.main(['--env-id', 'Nope-v0'])\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
