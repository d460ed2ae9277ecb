"""An environment that changes its process, in a folder whose files are named like modules."""

import functools
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests import Patch, runs
from tests.clusters import untrained

RUDE = """
import ctypes, logging.config, os, signal, sys, threading, time
from pathlib import Path
import gymnasium
import numpy as np

HOME = Path(__file__).parent

class Rude(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        os.makedirs(HOME / "elsewhere", exist_ok=True)
        os.chdir(HOME / "elsewhere")
        os.write(1, b"native output ")
        ctypes.CDLL(None).printf(b"buffered output ")
        print("Python's own stdout", file=sys.__stdout__)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a usual remedy against zombies
        logging.config.dictConfig({"version": 1, "root": {"level": "CRITICAL", "handlers": []}})
        logging.disable(logging.CRITICAL)
        threading.Thread(target=time.sleep, args=[1000]).start()  # Python's exit waits for it

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        for number in () if hasattr(self, "steps") else (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(5))
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, self.steps == 20, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)

    def close(self):
        with (HOME / "closed").open("a") as file:
            file.write(Path(sys.argv[0]).name + "\\n")

gymnasium.register("Rude-v0", Rude)
"""
CHILD = ("launch_cluster.py", "--mode", "child", "--run-dir", "run")
FAILS_IN_A_WORKER = """
import os, sys
from examples import own_network

def build(*given):
    if "--job" in sys.argv:
        os._exit(70)
    return own_network.build(*given)
"""


@pytest.fixture
def at_home(here: Path, monkeypatch: Patch) -> Path:
    """The current folder, with files that `python -m` would import as modules."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (here / "rude.py").write_text(RUDE)
    (here / "a3c").mkdir()
    for name in ("a3c/__init__", "json", "select", "types"):
        (here / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')\n")
    return here


def test_a_rude_environment_trains_and_is_closed_and_evaluated(at_home: Path) -> None:
    plan = runs.call_script("launch_cluster.py", "--env-id", "rude:Rude-v0", "--dry-run", "--json")
    assert json.loads(plan.stdout)["processes"], plan.stderr
    flags = ("--env-id", "rude:Rude-v0", "--max-env-steps", "3000", "--stop-at-return", "none")
    more = ("--workers", "1", "--evaluation-episodes", "2")
    done = runs.call_script(*CHILD, *flags, *more, check=True)
    assert "env steps in" in done.stderr
    assert json.loads((at_home / "run" / "summary.json").read_text())["evaluation"]["mean"] == 20.0
    assert "env steps" in (at_home / "run/logs/worker-0.log").read_text()
    assert "worker.py" in (at_home / "closed").read_text().split()
    played = ("run", "--episodes", "1", "--json", "--record", "elsewhere/film")
    score = runs.call_script("evaluate.py", *played)
    assert (score.returncode, json.loads(score.stdout)["mean"]) == (0, 20.0), score.stderr
    (film,) = (at_home / "elsewhere" / "film").glob("*")
    assert (film.suffix, f"video: {film}\n" in score.stderr) == (".mp4", True), score.stderr


def test_a_rude_environment_is_saved_when_a_signal_comes(at_home: Path) -> None:
    path = at_home / "run"
    flags = ("--env-id", "rude:Rude-v0", "--checkpoint-interval", "1000", *runs.ENDLESS)
    with runs.running(path, *flags) as process:
        runs.wait_until(lambda: runs.is_training(path), "training")
        runs.stop(process, signal.SIGTERM)
    assert runs.manifest(path).reason == "interrupted"


def test_a_failed_process_fails_the_run_of_a_rude_environment(at_home: Path) -> None:
    (at_home / "network.py").write_text(FAILS_IN_A_WORKER)
    flags = ("--env-id", "rude:Rude-v0", "--network", "network:build", "--workers", "1")
    done = runs.call_script(*CHILD, *flags)
    assert (done.returncode, "worker-0 failed with 70" in done.stderr) == (70, True), done.stderr


SLEEPER = """
import subprocess
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Sleeper(CartPoleEnv):
    def __init__(self, **settings):
        super().__init__(**settings)
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True, stderr=-3)
        with open("started", "a") as file:
            print(left.pid, file=file)

gymnasium.register("Sleeper-v0", Sleeper, max_episode_steps=9)
"""


def test_processes_that_an_environment_leaves_end_with_the_command(here: Path) -> None:
    (here / "sleeper.py").write_text(SLEEPER)
    untrained(here, env_id="CartPole-v1")
    manifest = here / "7" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("CartPole-v1", "sleeper:Sleeper-v0"))
    for command in (
        ("launch_cluster.py", "--env-id", "sleeper:Sleeper-v0", "--dry-run"),
        ("model.py", "--env-id", "sleeper:Sleeper-v0", "--check"),
        ("evaluate.py", "7", "--episodes", "1"),
    ):
        runs.call_script(*command, stdout=subprocess.DEVNULL, capture_output=False, check=True)
        (started,) = (here / "started").read_text().split()
        (here / "started").unlink()
        runs.wait_until(functools.partial(runs.is_gone, int(started)), f"the end of {command}")
