"""The user's wrappers: what they change for learning, and that scores stay raw."""

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envs
import model
from a3c.config import EnvConfig
from a3c.env import wrappers
from a3c.learn.rollout import Player, Rollout, info_numbers
from a3c.net.distributions import for_space
from a3c.play.playground import EvaluationSetup
from a3c.run.metrics import Episode
from tests import refused
from tests.clusters import untrained
from tests.fake_runs import configure
from tests.scripted import ACTIONS, Script, ScriptedActor, ScriptedEnv
from tests.test_envs import Echo

OUTCOME = "examples.reward_shaping:Outcome"


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode at a negative reward, and goes on with the same game."""

    over = True

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.over = terminated or truncated
        return observation, reward, self.over or float(reward) < 0, False, info

    def reset(self, **arguments: Any) -> Any:
        return self.env.reset(**arguments) if self.over else self.env.step(0)[::4]


class Cut(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends a game after its second step, and plays one step before the agent's first."""

    left = 0

    def step(self, action: Any) -> Any:
        self.left -= 1
        observation, _, terminated, _, info = self.env.step(action)
        return observation, 0.0, terminated, self.left == 0, info

    def reset(self, **arguments: Any) -> Any:
        self.left = 2
        self.env.reset(**arguments)
        return self.env.step(0)[::4]


class Twice(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action twice, as a frame skip does."""

    def step(self, action: Any) -> Any:
        first = self.env.step(action)
        return first if first[2] or first[3] else self.env.step(action)


class WarmUp(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Plays a whole game in each reset."""

    def reset(self, **arguments: Any) -> Any:
        self.env.reset(**arguments)
        while not self.env.step(0)[2]:
            pass
        return self.env.reset()


def rollouts(wrapper: str, *scripts: Script, **settings: Any) -> Iterator[Rollout]:
    given = ({"name": f"{__name__}:{wrapper}"},)
    made = wrappers.Copies(lambda: ScriptedEnv(0, scripts, []), 1, given)
    chosen = configure(gamma=0.5, network="mlp", envs_per_worker=1, **settings)
    policy = for_space(ACTIONS, chosen.network)
    return Player(made, ScriptedActor(), policy, chosen, seed=1).rollouts()


def test_a_game_that_goes_on_after_an_end_for_learning_has_one_score() -> None:
    played = rollouts("Lives", Script((5.0, -1.0, 7.0, 2.0)), rollout_length=3)
    rollout = next(played)  # steps 0, 1, 3: step 2 is of the reset
    assert rollout.discounts[:, 0].tolist() == [0.5, 0.0, 0.0]
    assert rollout.rewards[:, 0].tolist() == [5.0, -1.0, 2.0]
    assert rollout.episodes == [Episode(13.0, 3)]


def test_a_game_that_a_wrapper_cuts_counts_up_to_there_from_its_own_first_step() -> None:
    played = rollouts("Cut", Script((1.0, 10.0, 100.0, 1000.0)), rollout_length=2)
    games = [game for rollout in itertools.islice(played, 3) for game in rollout.episodes]
    assert games == [Episode(111.0, 2)] * 3


def test_rewards_that_a_wrapper_skips_count() -> None:
    played = rollouts("Twice", Script((1.0, 10.0, 100.0)), rollout_length=4)
    rollout = next(played)
    assert rollout.rewards[:, 0].tolist() == [10.0, 100.0, 10.0, 100.0]
    assert rollout.episodes == [Episode(111.0, 2)] * 2


def test_a_reward_of_several_numbers_is_refused_in_words() -> None:
    inner = ScriptedEnv(0, (Script((1.0, 10.0)),), [])
    env = gymnasium.wrappers.TransformReward(inner, lambda reward: np.full(2, reward))
    with closing(wrappers.Copies(lambda: env, 1, ({"name": f"{__name__}:Twice"},))) as made:
        made.reset()
        refused(r"reward \[1. 1.\] isn't one number", made.step, np.zeros(1, int))


def test_games_that_a_wrapper_plays_in_reset_have_no_score() -> None:
    played = rollouts("WarmUp", Script((1.0, 10.0)), rollout_length=6)
    assert next(played).episodes == [Episode(11.0, 2)] * 3


def test_the_example_gives_minus_1_0_or_1_and_the_scores_are_cartpoles() -> None:
    settings = EnvConfig(env_id="CartPole-v1", wrapper=({"name": OUTCOME, "won": 2.0},))
    with closing(envs.make("CartPole-v1", 2, 1, settings)) as made:
        made.reset(seed=1)
        for _ in range(30):
            _, rewards, done, _, info = made.step(np.ones(2, np.int64))
            raw, ended = wrappers.raw(info, rewards, done)
            assert (rewards == np.where(done, -1.0, 0.0)).all()
            assert (ended == done).all()
            assert (raw == 1.0).all()
    limit = {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 3}
    settings = EnvConfig(env_id="CartPole-v1", wrapper=(limit, settings.wrapper[0]))
    with closing(envs.make("CartPole-v1", 1, 1, settings)) as made:
        made.reset(seed=1)
        rewards = [float(made.step(np.zeros(1, np.int64))[1][0]) for _ in range(6)]
    assert rewards == [0.0, 0.0, 2.0] * 2, "the first wrapper is the innermost"


def test_evaluation_and_load_wrap_too_and_their_scores_are_raw(tmp_path: Path) -> None:
    limit = {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 4}
    settings = {"env_id": "CartPole-v1", "wrapper": [limit, OUTCOME]}
    loaded = untrained(tmp_path, **settings)
    setup = EvaluationSetup(configure(**settings), envs.make, model.build, 1)
    assert setup.play(tmp_path / "7", 6) == [Episode(4.0, 4)] * 6
    with closing(loaded.make_env()) as env:
        env.reset(seed=1)
        steps = [env.step(0)[1:4] for _ in range(4)]
    assert steps == [(1.0, False, False)] * 3 + [(1.0, False, True)]


@pytest.mark.parametrize("preprocessing", ["auto", "none"])
def test_atari_games_are_wrapped_one_by_one(preprocessing: Any) -> None:
    own, wrong = {"name": f"{__name__}:Negative"}, {"name": "gymnasium.wrappers:TransformReward"}
    settings = EnvConfig(env_id="ALE/Pong-v5", preprocessing=preprocessing, wrapper=(own,))
    with closing(envs.make("ALE/Pong-v5", 1, 1, settings)) as made:
        made.reset(seed=1)
        total = raw_total = 0.0
        for _ in range(90):
            _, rewards, done, _, info = made.step(np.zeros(1, np.int64))
            total += float(rewards[0])
            raw_total += float(wrappers.raw(info, rewards, done)[0][0])
    assert raw_total < 0
    assert total == -raw_total
    settings = dataclasses.replace(settings, wrapper=({**wrong, "func": "no function"},))
    refused(r"^env_id ALE/Pong-v5 in gymnasium.wrappers:Tr\w+ failed", envs.check, settings)


class Negative(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return -float(reward)


def test_last_observations_are_copies_also_of_dicts() -> None:
    class Reusing(Echo):
        def reset(self, **_: Any) -> Any:
            self._seen = {"x": getattr(self, "_seen", {"x": np.zeros(2)})["x"]}
            self._seen["x"][:] = 0.0
            return self._seen, {}

        def step(self, _: Any) -> Any:
            self._seen["x"] += 3.0
            return self._seen, 0.0, False, True, {}

    space = spaces.Dict(x=spaces.Box(-9.0, 9.0, (2,)))
    made = wrappers.Copies(lambda: Reusing(space), 1, ())
    made.reset()
    assert made.step(np.zeros(1, int))[4]["final_obs"][0]["x"].tolist() == [3.0, 3.0]


def test_infos_hold_anything_in_each_copy_and_step() -> None:
    path = np.zeros(3)
    told: list[dict[Any, Any]] = [  # by copy, step for step
        {"distance": 0, "found": True, "path": np.zeros(1), "at": None, "team": 1},
        {"distance": 0.75, "found": 5, "path": path, "at": 4, "team": {"score": np.array(2.0)}},
        {"distance": 1.5, "found": 2.5, "path": "none", "at": {"x": 1}, "team": {"score": 3}},
        {"distance": "far", "found": None, "path": np.zeros((2, 2)), 7: [1], "team": {}},
    ]
    told[0] |= {"seen": 10**30, "_seen": 0, "raw_rewards": 7}
    told[1] |= {"seen": 10**400, "task/success": True, "task": {"success": 5}}
    infos = iter(told)

    class InfoEnv(ScriptedEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], next(infos)

    made = wrappers.Copies(lambda: InfoEnv(0, [Script((0.0,) * 9)], []), 2, ())
    made.reset()
    first, second = (made.step(np.zeros(2, int))[4] for _ in range(2))
    path[:] = 9.0
    assert [len(array) for array in first["path"]] == [1, 3]
    assert first["path"][1].sum() == 0.0, "the environment's own array, which it changes"

    def found(name: str) -> list[list[float]]:
        done, played = np.zeros(2, bool), np.ones(2, bool)
        return [list(info_numbers(info, name, done, played)) for info in (first, second)]

    assert found("distance") == [[0.0, 0.75], [1.5]]
    assert found("found") == [[1.0, 5.0], [2.5]]
    assert found("at") == [[4.0], []]
    assert found("at/x") == [[], [1.0]]
    assert found("team/score") == [[2.0], [3.0]]
    assert found("task/success") == [[1.0], []]
    assert found("seen") == [[1e30], []]
    assert wrappers.raw(first, np.ones(2), np.zeros(2))[0].tolist() == [1.0, 1.0]
