"""Acting with a trained agent from Python, and exporting it."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.utils.env_checker import check_env

import a3c
from a3c.play import loaded_agent
from a3c.play.loaded_agent import LoadedAgent
from tests import Patch, refused
from tests.clusters import untrained
from tests.runs import REPOSITORY, call


@pytest.fixture(scope="module")
def cartpole() -> LoadedAgent:
    return a3c.load("zoo/cartpole")


def test_a_batch_gives_the_same_as_its_observations_one_by_one(cartpole: LoadedAgent) -> None:
    assert "CartPole-v1" in repr(cartpole)
    batch = np.random.default_rng(1).normal(0, 0.05, (3, 4)).astype(np.float32)
    all_at_once = cartpole.act(batch, greedy=True)
    for index, observation in enumerate(batch):
        alone = cartpole.act(observation, greedy=True)
        assert alone.action == all_at_once.action[index]
        np.testing.assert_allclose(alone.value, all_at_once.value[index], rtol=1e-5)
        np.testing.assert_allclose(alone.probabilities, all_at_once.probabilities[index], rtol=1e-5)
    assert all_at_once.action.tolist() == all_at_once.probabilities.argmax(axis=1).tolist()
    np.testing.assert_allclose(all_at_once.probabilities.sum(axis=1), 1.0)


def test_an_observation_that_does_not_fit_is_refused(cartpole: LoadedAgent, tmp_path: Path) -> None:
    refused(r"shape \(3,\): give \(4,\) or a batch of it", cartpole.act, np.zeros(3))
    refused(r"give \(4,\) or a batch of it", cartpole.act, [[1.0], [1.0, 2.0]])
    pixels = untrained(tmp_path, env_id="ALE/Pong-v5")
    scaled = np.zeros(pixels.observation_space.shape or ())
    refused("observations of float64: give uint8, unscaled", pixels.act, scaled)
    refused("observations from 300 to 300: give uint8", pixels.act, scaled.astype(int) + 300)
    refused(r"no agent 'zoo/chess'.*zoo/cartpole", a3c.load, "zoo/chess")
    which = "which 'last' is refused: give newest or best"
    refused(which, a3c.load, "zoo/cartpole", which="last")


def test_after_an_error_in_envs_or_model_the_next_load_tries_again(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(loaded_agent, "REPOSITORY", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "own.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            loaded_agent._beside("own")


def test_a_recurrent_agent_remembers_until_the_game_ends(tmp_path: Path) -> None:
    agent = untrained(tmp_path, env_id="CartPole-v1", network="mlp-lstm")
    env = agent.make_env()
    observation, _ = env.reset(seed=1)
    first, second = agent.act(observation), agent.act(observation)
    assert first.value != second.value
    env.reset(seed=1)
    assert agent.act(observation).value == first.value
    agent.act(np.stack([observation] * 2))
    assert agent.act(observation).value == first.value, "a batch of another size starts afresh"
    batch = np.stack([observation] * 2)
    agent.act(batch)
    values = agent.act(batch, starts=[True, False]).value
    np.testing.assert_allclose(values, [first.value, second.value], rtol=1e-5)
    refused(r"starts of shape \(3,\)", agent.act, batch, starts=[True] * 3)


def test_a_drawn_environment_hides_no_display_from_the_users_own_windows(
    cartpole: LoadedAgent, monkeypatch: Patch
) -> None:
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")  # so that it is removed afterwards
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":4711")
    cartpole.make_env(render=True).close()
    assert not {"SDL_VIDEODRIVER", "SDL_AUDIODRIVER"} & {*os.environ}
    monkeypatch.delenv("DISPLAY")
    cartpole.make_env(render=True).close()
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


@pytest.mark.parametrize(
    "settings",
    [
        {"env_id": "ALE/Breakout-v5", "episodic_life": True, "reward_clip": 1.0},
        {"env_id": "Pendulum-v1", "action_bounds": "squash"},
        {"env_id": "CartPole-v1", "max_episode_steps": 5},
    ],
)
def test_make_env_passes_gymnasiums_checker(tmp_path: Path, settings: Any) -> None:
    agent = untrained(tmp_path, **settings)
    env = agent.make_env(render=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is unusual about the spaces themselves
        check_env(env, skip_render_check=True, skip_close_check=True)
    observation, _ = env.reset(seed=3)
    for _ in range(300):
        chosen = agent.act(observation)
        assert env.action_space.contains(chosen.action)
        observation, _, terminated, truncated, _ = env.step(chosen.action)
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            observation, _ = env.reset()
    assert env.render().shape[-1] == 3
    assert (chosen.probabilities is None) == (settings["env_id"] == "Pendulum-v1")
    env.close()


class Lock(gymnasium.Env[Any, Any]):
    """Two dials; a game has three steps, and its last one says whether it was won."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {"won": False, "dials": {"turned": 0}}

    def step(self, _: Any) -> Any:
        self.steps += 1
        info = {"won": self.steps == 3, "dials": {"turned": self.steps, "final_turn": 5}}
        named_like_gymnasiums = {"final_score": 5}
        return np.zeros(2, np.float32), 1.0, self.steps == 3, False, info | named_like_gymnasiums


gymnasium.register("Lock-v0", "tests.test_loaded_agent:Lock")


def test_each_choice_has_probabilities_and_the_last_step_its_info(tmp_path: Path) -> None:
    shaping = {"name": "examples.reward_shaping:Outcome"}
    agent = untrained(tmp_path, env_id="tests.test_loaded_agent:Lock-v0", wrapper=(shaping,))
    env = agent.make_env()
    observation, _ = env.reset(seed=1)
    infos = [env.step(agent.act(observation).action)[-1] for _ in range(3)]
    assert [info["won"] for info in infos] == [False, False, True]
    assert all({*info} - {"outcome"} == {"won", "dials", "final_score"} for info in infos)
    assert [info["dials"] for info in infos] == [{"turned": n, "final_turn": 5} for n in (1, 2, 3)]
    assert [len(each) for each in agent.act(observation).probabilities] == [2, 3]
    batch = agent.act(np.stack([observation] * 4)).probabilities
    assert [each.shape for each in batch] == [(4, 2), (4, 3)]


@pytest.mark.parametrize(
    ("env_id", "network"),
    [("CartPole-v1", "mlp"), ("CartPole-v1", "mlp-lstm"), ("ALE/Pong-v5", "nature")],
)
def test_exported_agents_act_as_the_loaded_one(tmp_path: Path, env_id: str, network: str) -> None:
    is_atari = network == "nature"
    agent = untrained(
        tmp_path / "run", env_id=env_id, network=network, normalize_observations=is_atari
    )
    shape, random = agent.observation_space.shape, np.random.default_rng(1)
    observations = random.normal(0, 1, (3, *shape)).astype(np.float32)
    if is_atari:
        observations = random.integers(0, 256, (3, *shape), np.uint8)
    inputs: dict[str, np.ndarray] = {"observations": observations}
    if network == "mlp-lstm":
        inputs |= {"state": np.zeros((3, 512), np.float32), "starts": np.zeros(3, bool)}
    wanted = agent.act(observations, greedy=True)

    saved: Any = tf.saved_model.load(str(agent.export(tmp_path / "saved")))
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    by_tensorflow = saved.signatures["serving_default"](**tensors)
    session = onnxruntime.InferenceSession(agent.export(tmp_path / "new" / "agent.onnx"))
    names = [output.name for output in session.get_outputs()]
    by_onnx = dict(zip(names, session.run(None, inputs), strict=True))
    for outputs in (by_tensorflow, by_onnx):
        assert np.asarray(outputs["actions"]).tolist() == wanted.action.tolist()
        np.testing.assert_allclose(outputs["values"], wanted.value, rtol=1e-4, atol=1e-6)
        assert ("next_state" in outputs) == (network == "mlp-lstm")
    refused("is there already", agent.export, tmp_path / "saved")


QUIET = """
import a3c, gc, multiprocessing, operator, os, sys
from concurrent.futures import ThreadPoolExecutor
gc.disable()
before = os.fstat(2)
with ThreadPoolExecutor(4) as threads:
    agent, *_ = threads.map(a3c.load, [sys.argv[1]] * 4)
assert os.path.samestat(before, os.fstat(2))
assert not gc.isenabled()
env = agent.make_env()
observation, _ = env.reset()
act = operator.methodcaller("act", observation, greedy=True)
with multiprocessing.get_context("spawn").Pool(1) as pool:
    there = pool.apply(act, (agent,))
pid = os.fork()  # where TensorFlow would hang
if pid == 0:
    try:
        act(agent)
    except a3c.errors.UserError as error:
        os._exit(7 * str(error).startswith("an agent can't act in a fork"))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert (there.action, there.value) == (act(agent).action, act(a3c.load(sys.argv[1])).value)
agent.export("saved")
agent.export("agent.onnx")
import tensorflow as tf
tf.get_logger().warning("the user's own line: this is deprecated")
"""


def test_agents_load_in_threads_act_in_other_processes_and_say_nothing(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "CUDA_"))}
    untrained(tmp_path / "there", env_id="CartPole-v1", network="mlp-lstm")
    environment |= {"PYTHONPATH": str(REPOSITORY)}
    done = call(sys.executable, "-c", QUIET, "there/7", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "WARNING:tensorflow:the user's own line: this is deprecated\n"


def test_the_example_notebook_runs(tmp_path: Path) -> None:
    notebook = json.loads((REPOSITORY / "examples/play.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join(cells * 2))  # "Run all" twice
    for name in ("envs", "model"):  # the user's own, which have nothing to do with ours
        (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    done = call(sys.executable, str(script), cwd=tmp_path, env=environment, check=True)
    assert "score 500" in done.stdout
