"""The user's wrappers around each environment, and the raw scores of the games below them.

A wrapper may change rewards and ends of episodes. Learning uses these; scores don't: below the
wrappers each game counts its own rewards, until it ends or is reset.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from a3c.config import user_code
from a3c.errors import UserError

Env = gymnasium.Env[Any, Any]

REWARDS, ENDS = "a3c/raw_rewards", "a3c/raw_ends"  # in the info of every step


class Copies(SyncVectorEnv):
    """Copies of an environment in the given wrappers, which reset in the step that ends a game.

    With wrappers, the info of each step holds its raw rewards and which games have ended.
    """

    def __init__(
        self, make: Callable[[], Env], num_envs: int, given: Sequence[dict[str, Any]]
    ) -> None:
        self._games: list[RawScoreCounter] = []

        def wrapped() -> Env:
            env = make()
            if given:
                self._games.append(RawScoreCounter(env))
                env = self._games[-1]
            for own in given:
                env = _wrap(env, **own)
            return env

        super().__init__([wrapped] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    def reset(self, **arguments: Any) -> Any:
        result = super().reset(**arguments)
        for game in self._games:
            game.sums_of_games = game.sums_of_games[-1:]
        return result

    def step(self, actions: Any) -> Any:
        *results, info = super().step(actions)
        if self._games:
            rewards, ends = zip(*(game.take() for game in self._games), strict=True)
            info |= {REWARDS: np.array(rewards), ENDS: np.array(ends)}
        return *results, info

    def _add_info(self, vector_infos: Any, env_info: Any, env_num: int) -> Any:
        """Add a copy's info: to a column of objects for each name, and to its mask `_name`.

        Columns of objects hold values of different types and shapes. Gymnasium's own columns take
        the type and shape of their first value, and fail at other values or convert them. A dict
        becomes a table of columns; plain values of the same name are then left out.
        """
        for name, value in env_info.items():
            is_table = isinstance(value, dict) and name != "final_obs"
            column = vector_infos.get(name)
            if isinstance(column, np.ndarray) and column.dtype == bool:
                continue  # it is the mask of another name
            if column is None or (is_table and not isinstance(column, dict)):
                column = {} if is_table else np.empty(self.num_envs, object)
                vector_infos[name] = column
                vector_infos[f"_{name}"] = np.zeros(self.num_envs, bool)
            if is_table:
                self._add_info(column, value, env_num)
            elif isinstance(column, dict):
                continue
            else:  # copied, as the environment may reuse an array; `[()]` makes 0-d ones numbers
                is_array = isinstance(value, np.ndarray)
                kept = copy.deepcopy(value) if name == "final_obs" else value
                column[env_num] = value.copy()[()] if is_array else kept
            vector_infos[f"_{name}"][env_num] = True
        return vector_infos


def _wrap(env: Env, name: str, **arguments: Any) -> Env:
    subject = f"wrapper {name}"
    wrapper = user_code.find(name, subject, "Wrapper")
    with user_code.as_user_error(subject):
        wrapped = wrapper(env, **copy.deepcopy(arguments))
    if not isinstance(wrapped, gymnasium.Env):
        made = user_code.kind_of(wrapped)
        raise UserError(f"{subject} gave {made}: let it be a gymnasium.Wrapper")
    return wrapped


class RawScoreCounter(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.sums_of_games = [0.0]  # of each game since the last `take`; the last is not over
        self._has_begun = False

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        _, reward, terminated, truncated, _ = result
        try:
            self.sums_of_games[-1] += float(reward)
        except TypeError:
            raise UserError(
                f"the environment's reward {reward} isn't one number, as scores are: register an "
                "environment that has your wrapper inside"
            ) from None
        self._has_begun = not (terminated or truncated)
        if not self._has_begun:
            self.sums_of_games.append(0.0)
        return result

    def reset(self, **arguments: Any) -> Any:
        if self._has_begun:
            self.sums_of_games.append(0.0)
            self._has_begun = False
        return self.env.reset(**arguments)

    def take(self) -> tuple[float, bool]:
        """The rewards since the last call, of one game, and whether it ended with them."""
        reward, *rest = self.sums_of_games
        self.sums_of_games = rest[-1:] or [0.0]  # a game that a wrapper played in reset is left out
        return reward, bool(rest)


def raw(
    info: dict[str, Any], rewards: np.ndarray, done: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The raw rewards of a step, `[B]`, and which whole games it ended."""
    return info.get(REWARDS, rewards), info.get(ENDS, done)
