"""Games with scripted rewards and ends, an actor whose every answer is known, random rollouts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from a3c.learn.agent import Action
from a3c.learn.rollout import Rollout

NUM_ACTIONS = 5
OBSERVATIONS = Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = Discrete(NUM_ACTIONS)


class Script(NamedTuple):
    """One game: its rewards, how it ends, and the lives after each step where it has lives."""

    rewards: tuple[float, ...]
    end: str = "terminated"  # or "truncated", or "both"
    lives: tuple[int, ...] = ()


class ScriptedEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Plays scripts one after the other, then again; observes its number, the game and the step."""

    observation_space = OBSERVATIONS
    action_space = ACTIONS

    def __init__(self, number: int, scripts: Sequence[Script], events: list[str]) -> None:
        self._number, self._scripts, self._events = number, scripts, events
        self._game, self._t = -1, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._events.append("reset")
        self._game, self._t = self._game + 1, 0
        lives = self._script.lives
        return self._observe(), {"lives": max(lives)} if lives else {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._events.append("step")
        script = self._script
        reward = script.rewards[self._t]
        info = {"lives": script.lives[self._t]} if script.lives else {}
        self._t += 1
        last = self._t == len(script.rewards)
        terminated = last and script.end in ("terminated", "both")
        truncated = last and script.end in ("truncated", "both")
        return self._observe(), reward, terminated, truncated, info

    @property
    def _script(self) -> Script:
        return self._scripts[self._game % len(self._scripts)]

    def _observe(self) -> np.ndarray:
        return np.array([self._number, self._game, self._t], np.float32)


def make_envs(
    scripts: Sequence[Sequence[Script]], mode: AutoresetMode, events: list[str] | None = None
) -> VectorEnv[Any, Any, Any]:
    log = [] if events is None else events
    makers = [
        lambda number=number, games=games: ScriptedEnv(number, games, log)
        for number, games in enumerate(scripts)
    ]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def value_of(observations: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """The actor's value of an observation; `memory` is its state after it."""
    number, game, t = np.moveaxis(np.asarray(observations, np.float64), -1, 0)
    return 100.0 * number + 10.0 * game + t + 0.25 * memory


def drawn_from(values: np.ndarray) -> np.ndarray:
    """The parameters of the policy that the actor claims to draw actions from, by their values."""
    return values[..., None] + np.arange(NUM_ACTIONS, dtype=np.float32)


class ScriptedActor:
    """Always takes action t mod 5; its state counts the observations of the episode so far."""

    def act(self, observations: np.ndarray, state: np.ndarray, starts: np.ndarray) -> Action:
        memory = self._remember(state, starts)
        actions = observations[:, 2].astype(np.int64) % NUM_ACTIONS
        values = value_of(observations, memory[:, 0]).astype(np.float32)
        return Action(actions, values, memory, drawn_from(values))

    def value(self, observations: np.ndarray, state: np.ndarray, starts: np.ndarray) -> np.ndarray:
        memory = self._remember(state, starts)
        return value_of(observations, memory[:, 0]).astype(np.float32)

    def initial_state(self, batch: int) -> np.ndarray:
        return np.zeros((batch, 1), np.float32)

    @staticmethod
    def _remember(state: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return np.where(starts[:, None], 0, state).astype(np.float32) + 1


def random_rollout(seed: int, num_steps: int = 5) -> Rollout:
    """A random rollout of three environments, with ended episodes and dead transitions."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, 3)
    return Rollout(
        observations=rng.normal(size=(*shape, 3)).astype(np.float32),
        actions=rng.integers(2, size=shape),
        rewards=rng.normal(size=shape).astype(np.float32),
        discounts=np.where(rng.random(shape) < 0.3, 0.0, 0.9).astype(np.float32),
        values=rng.normal(size=shape).astype(np.float32),
        bootstrap_value=rng.normal(size=3).astype(np.float32),
        mask=(rng.random(shape) < 0.8).astype(np.float32),
        starts=rng.random(shape) < 0.2,
        state=np.zeros((3, 0), np.float32),
        policy_parameters=rng.normal(size=(*shape, 2)).astype(np.float32),
        epsilon=rng.uniform(0.0, 0.5, shape).astype(np.float32),
        episodes=[],
        info={},
        return_statistics=np.zeros(0),
        next_observations=rng.normal(size=(3, 3)).astype(np.float32),
        next_starts=np.zeros(3, bool),
    )
