import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import envs
from a3c.config import EnvConfig, user_code
from a3c.env import environments
from tests import Log, Patch, refused
from tests.runs import REPOSITORY, call

FLOATS = spaces.Box(-1.0, 1.0, (3,), np.float64)
TWO = spaces.Discrete(2)
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Echo(gymnasium.Env[Any, Any]):
    """Any spaces; the reward is the action, the episode endless."""

    closed = 0

    def __init__(self, observations: Any = FLOATS, actions: Any = TWO, fault: Any = None) -> None:
        if isinstance(fault, BaseException):
            raise fault
        if fault == "slow":
            time.sleep(0.5)
        if fault == "elsewhere":
            os.chdir("/")
        self.observation_space = observations
        self.action_space = actions
        self._fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation = self.observation_space.sample()
        if self._fault == "step":
            raise ArithmeticError("lost\n  my way")
        if self._fault == "shape":
            observation = observation[:-1]
        return observation, float(np.sum(action)), False, False, {}

    def close(self) -> None:
        Echo.closed += 1


@pytest.fixture(autouse=True)
def echo(monkeypatch: Patch) -> Iterator[None]:
    """`Echo-v0` is registered, and what a test registers or puts on the path is gone after it."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    with mock.patch.dict(gymnasium.registry):
        # Gymnasium's own checks of an environment would come before ours, as warnings.
        gymnasium.register("Echo-v0", Echo, disable_env_checker=True)  # type: ignore[arg-type]
        yield
    for module in [name for name in sys.modules if name.startswith("someone")]:
        del sys.modules[module]


def make(env_id: str, num_envs: int = 2, render_mode: str | None = None, **settings: Any) -> Any:
    return envs.make(env_id, num_envs, 0, EnvConfig(env_id=env_id, **settings), render_mode)


def refusal(env_id: str, what: str, **settings: Any) -> str:
    """The one line with which `check` refuses an environment, found to say `what` (a pattern)."""
    return refused(what, envs.check, EnvConfig(env_id=env_id, **settings))


def truncations(made: VectorEnv[Any, Any, Any], num_steps: int) -> list[int]:
    made.reset(seed=0)
    made.action_space.seed(0)
    return [int(made.step(made.action_space.sample())[3][0]) for _ in range(num_steps)]


def test_a_native_vector_env_is_used_unless_it_lacks_a_keyword() -> None:
    made = make("CartPole-v1")
    assert type(made.unwrapped).__name__ == "CartPoleVectorEnv"
    assert made.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP

    def mute(num_envs: int) -> Any:  # takes no keywords at all
        return gymnasium.make_vec("Pendulum-v1", num_envs)

    gymnasium.register("Mute-v0", Echo, vector_entry_point=mute)  # type: ignore[arg-type]
    assert make("Mute-v0").single_observation_space.shape == (3,)
    for settings in ({"env_kwargs": {"actions": TWO}}, {"max_episode_steps": 2}):
        assert make("Mute-v0", **settings).single_action_space == TWO
    for env_id, render_mode in (("Pendulum-v1", None), ("CartPole-v1", "rgb_array")):
        made = make(env_id, render_mode=render_mode)
        assert isinstance(made, SyncVectorEnv)
        assert made.render_mode == render_mode
        assert made.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP


@pytest.mark.parametrize(("env_id", "period"), [("CartPole-v1", 4), ("Pendulum-v1", 3)])
def test_the_step_limit_can_be_set(env_id: str, period: int) -> None:
    # With CartPole's own vector implementation, the reset takes a step.
    made = make(env_id, max_episode_steps=3)
    assert truncations(made, 9) == [int((step - 2) % period == 0) for step in range(9)]


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_an_old_id_is_played_without_gymnasiums_warning(render_mode: str | None) -> None:
    make("CartPole-v0", render_mode=render_mode).close()


DRAWS = """
import gymnasium
from a3c.config import EnvConfig
from a3c.env import environments
print("begins")
gymnasium.register("Toy-v0", "mujoco_toy:Toy")
environments.make_vec("Toy-v0", 1, EnvConfig(env_id="Toy-v0"), "rgb_array").close()
print("ends")
"""


def test_a_drawn_mujoco_game_does_not_run_the_users_program_again(here: Path) -> None:
    toy = "from gymnasium.envs.classic_control import CartPoleEnv as Toy"
    (here / "mujoco_toy.py").write_text(toy)
    (here / "draw.py").write_text(DRAWS)
    environment = {k: v for k, v in os.environ.items() if k != "DISPLAY"}
    environment["PYTHONPATH"] = f"{REPOSITORY}:{here}"
    done = call(sys.executable, "draw.py", cwd=here, env=environment)
    assert (done.returncode, done.stdout) == (0, "begins\nends\n"), done.stderr


def test_keywords_reach_the_environment() -> None:
    given = {"sutton_barto_reward": True}
    for render_mode in (None, "rgb_array"):
        made = make("CartPole-v1", render_mode=render_mode, env_kwargs=given)
        made.reset(seed=0)
        assert made.step(made.action_space.sample())[1].tolist() == [0, 0]


class Pops(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, sizes: list[int]) -> None:
        super().__init__(env)
        self.size = sizes.pop()


def test_each_copy_gets_the_arguments_as_given_also_if_others_change_theirs() -> None:
    def popping(config: dict[str, int]) -> Echo:
        return Echo(spaces.Box(-1.0, 1.0, (config.pop("size", 5),)))

    def alone(num_envs: int, config: dict[str, int]) -> Any:
        return SyncVectorEnv([lambda: popping(config)] * num_envs)

    gymnasium.register("Popping-v0", popping)  # type: ignore[arg-type]
    gymnasium.register("Alone-v0", vector_entry_point=alone)  # type: ignore[arg-type]
    given: dict[str, Any] = {"env_kwargs": {"config": {"size": 9}}}
    seen = [make("Alone-v0", 1, **given).single_observation_space for _ in range(2)]
    assert seen == [spaces.Box(-1.0, 1.0, (9,))] * 2
    given["wrapper"] = ({"name": f"{__name__}:Pops", "sizes": [6]},)
    made = make("Popping-v0", 3, **given)
    assert made.single_observation_space == seen[0]
    assert made.get_attr("size") == (6, 6, 6)


def test_an_environment_of_many_games_only_can_be_drawn_but_not_wrapped() -> None:
    def poles(num_envs: int, render_mode: str | None = None) -> Any:
        return SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1", render_mode=render_mode)] * num_envs
        )

    gymnasium.register("Poles-v0", vector_entry_point=poles)  # type: ignore[arg-type]
    assert make("Poles-v0", 2).render_mode is None
    assert make("Poles-v0", 2, render_mode="rgb_array").render_mode == "rgb_array"
    given = {"wrapper": ({"name": f"{__name__}:Pops"},)}
    refused("Poles-v0 has only a vector environment: leave --wrapper", make, "Poles-v0", **given)


def test_a_seed_settles_play_and_each_copy_has_its_own() -> None:
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        one, same, other = (make(env_id, 3).reset(seed=seed)[0] for seed in (5, 5, 99))
        np.testing.assert_array_equal(one, same)
        assert (one != other).any(axis=1).all()
        assert len(np.unique(one, axis=0)) == 3
    samples = [
        envs.make("Pendulum-v1", 50, seed, EnvConfig()).action_space.sample() for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(samples[0], samples[1])
    assert (samples[0] != samples[2]).any()


def test_only_selected_actions_are_played_by_the_numbers_of_the_space() -> None:
    given: dict[str, Any] = {"actions": spaces.Discrete(3, start=4)}
    made = make("Echo-v0", 2, actions=(6, 4), env_kwargs=given)
    assert made.single_action_space == spaces.Discrete(2)
    made.reset(seed=0)
    assert made.step(np.array([0, 1]))[1].tolist() == [6, 4]
    refusal("Echo-v0", "3 is none, they go from 4 to 6", actions=(5, 3), env_kwargs=given)


def test_a_users_environment_is_found_in_this_folder(here: Path) -> None:
    package = here / "someones"
    package.mkdir()
    (package / "world.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        'gymnasium.register("Someones/World-v3", PendulumEnv, max_episode_steps=2)\n'
    )
    assert truncations(make("someones.world:Someones/World-v3"), 4) == [0, 1, 0, 1]
    Path("plot.py").touch()
    refused("a3c-cluster has a module plot too: rename yours", make, "plot:Mine-v0")
    (here / "tests").mkdir()
    (here / "tests" / "mine.py").touch()
    refused("a3c-cluster has a module tests too: rename yours", make, "tests.mine:Mine-v0")
    (here / "a3c" / "process").mkdir(parents=True)
    (here / "a3c" / "process" / "environment.py").touch()  # in a clone they are ours
    refused("importing tests.mine failed", make, "tests.mine:Mine-v0")
    refused("env_id", make, ".:Mine-v0")
    (here / "examples").mkdir()  # hides none of ours
    assert make("examples.memory:Memory-v0")


def test_errors_in_files_beside_ours_have_their_place(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(user_code, "REPOSITORY", here)
    (here / "someones.py").write_text("import json\njson.loads('{')\n")
    refused("someones.py:2: JSONDecodeError", make, "someones:Mine-v0")
    (here / "someones_too.py").write_text("import envs.world\n")
    said = "'envs' is not a package; a3c-cluster has a module envs too: rename yours"
    refused(said, make, "someones_too:Mine-v0")


def test_check_returns_the_spaces_and_closes() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"observations": spaces.Box(0, 255, (8, 8, 3), np.uint8)},
        {"observations": UNBOUNDED, "actions": UNBOUNDED},
        {"actions": spaces.MultiDiscrete(np.full((2, 2), 2))},
        {"actions": spaces.MultiBinary(3)},
        {"actions": spaces.Discrete(3, start=-1)},
        {"actions": spaces.Box(-1.0, 1.0, (2, 2), np.float64)},
        {"fault": "elsewhere"},
    ]
    here = Path.cwd()
    for keywords in cases:
        closed = Echo.closed
        found = envs.check(EnvConfig(env_id="Echo-v0", env_kwargs=keywords))
        assert found == (keywords.get("observations", FLOATS), keywords.get("actions", TWO))
        assert Echo.closed == closed + 1
        assert Path.cwd() == here


def test_a_check_that_takes_long_says_what_it_waits_for(monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(environments, "STILL_TRYING_S", 0.1)
    envs.check(EnvConfig(env_id="Echo-v0", env_kwargs={"fault": "slow"}))
    (said,) = caplog.messages
    assert said.startswith("still trying Echo-v0: its import, constructor, reset, step or close ")


def test_unusable_environments_are_refused_in_one_line() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"observations": spaces.Box(0, 1, (3, 0))}, "empty observations.*shape without 0"),
        ({"actions": spaces.Dict({"a": TWO})}, "actions Dict.*wrap it"),
        ({"actions": spaces.Box(0, 9, (2,), np.int64)}, "Box of floating-point"),
        ({"actions": spaces.Box(0, 1, (0,))}, "with a shape without 0"),
        ({"actions": spaces.Discrete(2**40)}, "has 1,099,511,627,776 actions: a policy has at"),
        ({"fault": "shape"}, "Echo-v0 with env_kwargs {'fault': 'shape'} failed: ValueError"),
        ({"fault": "step"}, r"failed: \S*test_envs.py:\d+: ArithmeticError: lost my way; "),
        ({"fault": OSError("no\ncamera")}, r"failed: \S*test_envs.py:\d+: OSError: no camera"),
        ({"fault": KeyError()}, r"test_envs.py:\d+: KeyError; fix it"),
        ({"fault": SystemExit(0)}, r"test_envs.py:\d+: SystemExit: 0; fix it"),
        ({"fault": ModuleNotFoundError("x", name="chess.pgn")}, "chess.pgn.*pip install chess$"),
        ({"colour": 3}, "env_kwargs {'colour': 3} failed: .*argument 'colour'; fix"),
    ]
    for keywords, what in cases:
        assert refusal("Echo-v0", what, env_kwargs=keywords).startswith("env_id Echo-v0 ")


def test_refused_environments_are_closed_and_faults_of_vector_ones_are_their_own() -> None:
    def misdeclared(num_envs: int) -> Any:
        made = gymnasium.make_vec("Pendulum-v1", num_envs)
        made.single_observation_space = UNBOUNDED
        return made

    def faulty(num_envs: int) -> Any:
        raise TypeError(f"my own bug with {num_envs}")

    closed = Echo.closed
    refusal("Echo-v0", "lost my way", env_kwargs={"fault": "step"})
    assert Echo.closed == closed + 1
    gymnasium.register("Liar-v0", Echo, vector_entry_point=misdeclared)  # type: ignore[arg-type]
    refusal("Liar-v0", r"ValueError: observations have shape \(1, 3\), not \(1, 2\); fix it")
    gymnasium.register("Buggy-v0", vector_entry_point=faulty)  # type: ignore[arg-type]
    refusal("Buggy-v0", "TypeError: my own bug with 1")


def test_settings_that_do_not_fit_are_refused() -> None:
    refusal("Pendulum-v1", r"actions \[0\]: only Discrete actions can be selected", actions=(0,))
    refusal("ALE/Pong-v5", "{'mode': 99} failed: RuntimeError", env_kwargs={"mode": 99})
    refusal("CartPole-v1", "{'num_envs': 3} failed: .*TypeError", env_kwargs={"num_envs": 3})


def test_a_missing_dependency_says_what_to_install(monkeypatch: Patch) -> None:
    for module in ("jax", "mujoco", "Box2D", "minigrid", "minatar"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    refusal("phys2d/CartPole-v1", r"needs jax, .*pip install \"gymnasium\[jax\]\"")
    refusal("tabular/Blackjack-v0", r"needs jax, .*pip install \"gymnasium\[jax\]\"")
    refusal("MiniGrid-Empty-5x5-v0", "needs minigrid, .*pip install minigrid$")
    refusal("MinAtar/Breakout-v1", "needs minatar.gym, .*pip install minatar$")
    missing = "needs gymnasium.{0}., which is missing here: .*pip install .gymnasium.{0}..$"
    refusal("Ant-v5", missing.format("mujoco"))
    refusal("LunarLander-v3", missing.format("box2d"))
    refused(missing.format("box2d"), make, "LunarLander-v3")  # not only before a run starts


def test_packages_are_imported_for_their_ids(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "someones_package.py").write_text(
        "import gymnasium\n"
        "def register_envs():\n"
        '    gymnasium.register("Someones/Land-v0", gymnasium.spec("Pendulum-v1").entry_point)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(environments._PACKAGES, "Someones/", "someones_package")
    assert make("Someones/Land-v0").single_observation_space.shape == (3,)
    del gymnasium.registry["Someones/Land-v0"]
    environments.import_packages()
    assert "Someones/Land-v0" in gymnasium.registry


def test_gymnasiums_own_register_envs_may_be_imported_by_name(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "theirs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control.pendulum import PendulumEnv\n"
        'gymnasium.register("Theirs-v0", PendulumEnv)\n'
    )
    (tmp_path / "of_theirs.py").write_text(
        "from gymnasium import register_envs\nimport theirs\nregister_envs(theirs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert make("of_theirs:Theirs-v0").single_observation_space.shape == (3,)


def test_a_vector_environment_must_say_when_it_resets() -> None:
    made = make("Pendulum-v1")
    del made.metadata["autoreset_mode"]
    said = "Pendulum-v1 does not say when it resets: set metadata"
    refused(said, environments.check_spaces, made, "Pendulum-v1")
