"""The user's wrappers around each environment, and the raw scores of the games below them.

A wrapper may change rewards and ends of episodes. Learning uses these; scores don't: below the
wrappers each game counts its own rewards, until it ends or is reset.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from a3c.config import user_code
from a3c.errors import UserError

REWARDS, ENDS = "raw_rewards", "raw_ends"  # in the info of every step


def copies(
    make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, given: Sequence[dict[str, Any]]
) -> VectorEnv[Any, Any, Any]:
    """Copies of an environment in the given wrappers, which reset in the step that ends a game."""
    games: list[RawScoreCounter] = []

    def wrapped() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = make()
        if given:
            games.append(RawScoreCounter(env))
            env = games[-1]
        for own in given:
            env = _wrap(env, **own)
        return env

    envs = Copies([wrapped] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return RawScores(envs, games) if given else envs


class Copies(SyncVectorEnv):
    """Copies whose infos hold anything, of other types and shapes in each copy and step."""

    def _add_info(self, vector_infos: Any, env_info: Any, env_num: int) -> Any:
        """Add a copy's info: to a column of objects for each name, and to its mask `_name`.

        Gymnasium's columns have the type and shape of their first value, and fail at others or
        change them. A dict is a table of columns; plain values of that name are then left out.
        """
        for name, value in env_info.items():
            is_table = isinstance(value, dict) and name != "final_obs"
            column = vector_infos.get(name)
            if column is None or (is_table and not isinstance(column, dict)):
                column = {} if is_table else np.empty(self.num_envs, object)
                vector_infos[name] = column
                vector_infos[f"_{name}"] = np.zeros(self.num_envs, bool)
            if is_table:
                self._add_info(column, value, env_num)
            elif isinstance(column, dict):
                continue
            else:  # the environment may reuse an array; one without axes becomes a number
                is_array = isinstance(value, np.ndarray)
                kept = copy.deepcopy(value) if name == "final_obs" else value
                column[env_num] = value.copy()[()] if is_array else kept
            vector_infos[f"_{name}"][env_num] = True
        return vector_infos


def _wrap(env: gymnasium.Env[Any, Any], name: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    subject = f"wrapper {name}"
    wrapper = user_code.find(name, subject, "Wrapper")
    with user_code.as_user_error(subject):
        wrapped = wrapper(env, **arguments)
    if not isinstance(wrapped, gymnasium.Env):
        made = user_code.kind_of(wrapped)
        raise UserError(f"{subject} gave {made}: let it be a gymnasium.Wrapper")
    return wrapped


class RawScoreCounter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts the raw rewards of each game."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._sums = [0.0]  # of each game since the last `take`; the last one goes on
        self._has_begun = False

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        _, reward, terminated, truncated, _ = result
        self._sums[-1] += float(reward)
        self._has_begun = not (terminated or truncated)
        if not self._has_begun:
            self._sums.append(0.0)
        return result

    def reset(self, **arguments: Any) -> Any:
        if self._has_begun:
            self._sums.append(0.0)
            self._has_begun = False
        return self.env.reset(**arguments)

    def take(self) -> tuple[float, bool]:
        """The rewards since the last call, of one game, and whether it ended with them."""
        reward, *rest = self._sums
        self._sums = [sum(rest)]
        return reward, bool(rest)

    def forget(self) -> None:
        self._sums = self._sums[-1:]


class RawScores(VectorWrapper[Any, Any, Any, Any, Any]):
    """Adds the raw rewards of each step to its info, and which games have ended."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], games: Sequence[RawScoreCounter]) -> None:
        super().__init__(envs)
        self._games = games

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(**arguments)
        for game in self._games:
            game.forget()
        return result

    def step(self, actions: Any) -> Any:
        *results, info = self.env.step(actions)
        rewards, ends = zip(*(game.take() for game in self._games), strict=True)
        return *results, info | {REWARDS: np.array(rewards), ENDS: np.array(ends)}


def raw(
    info: dict[str, Any], rewards: np.ndarray, done: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The raw rewards of a step, `[B]`, and which whole games it ended."""
    return info.get(REWARDS, rewards), info.get(ENDS, done)
