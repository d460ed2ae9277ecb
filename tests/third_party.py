"""Environments of other packages: `make extras` installs these and runs this file."""

from pathlib import Path
from typing import Any

import pytest

import a3c
from tests import Patch
from tests.clusters import rows, small_config, worker
from tests.runs import call_script

SEEN = {"name": "gymnasium.wrappers:FilterObservation", "filter_keys": ["image", "direction"]}
ENVS: dict[str, dict[str, Any]] = {
    "MiniGrid-DoorKey-5x5-v0": {"wrapper": [SEEN]},
    "MinAtar/Breakout-v1": {"network": "universe-ff"},
    "LunarLander-v3": {},
    "BipedalWalker-v3": {},
    "InvertedPendulum-v5": {"normalize_observations": True},
    "examples.doors:Doors-v0": {"action_masks": True},
}


def test_mujoco_is_recorded_without_a_display(tmp_path: Path, monkeypatch: Patch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    flags = ("--episodes", "1", "--record", str(tmp_path), "--seconds", "0.2")
    call_script("evaluate.py", "zoo/hopper", *flags, check=True)
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]


@pytest.mark.filterwarnings("default")  # theirs are not ours
@pytest.mark.parametrize("env_id", ENVS)
def test_a_worker_learns_and_its_agent_acts(env_id: str, tmp_path: Path) -> None:
    settings = {"envs": 4, "workers": 1, "rollout_length": 8, "max_env_steps": 640}
    worker(small_config(env_id=env_id, **{**settings, **ENVS[env_id]}), tmp_path).run()
    last = rows(tmp_path)[-1]
    assert last["env_steps"] >= 640
    assert last["drops/rollouts"] == 0
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    agent = a3c.load(checkpoint)
    env = agent.make_env()
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        observation, _, terminated, truncated, _ = env.step(agent.act(observation).action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
