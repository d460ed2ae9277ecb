"""Play whole games with a checkpoint's network, and keep the raw scores.

Training clips and scales rewards and ends episodes at lost lives in the rollout, not in the
environments, so evaluation is unaffected by this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from a3c.errors import UserError
from a3c.learn.agent import Action, Agent
from a3c.learn.rollout import Actor, Autoreset
from a3c.play.scores import Summary, summarise
from a3c.process.console import count
from a3c.run import checkpoint
from a3c.run.metrics import Episode

__all__ = ["Decision", "Summary", "load", "play", "quotas", "summarise"]

MAX_ENVS = 8


# --- the agent ----------------------------------------------------------------------------------


def load(agent: Agent, directory: Path) -> None:
    """Load the weights and observation statistics of a checkpoint into an agent.

    Raises DamagedCheckpointError if the checkpoint can't be read, and UserError if it is of another
    network.
    """
    values = checkpoint.load_variables(directory)
    wanted = agent.shapes | {"observation_statistics": (agent.statistics_size,)}
    for name, shape in wanted.items():
        if name not in values or values[name].shape != shape:
            there = f"of shape {values[name].shape}" if name in values else "missing"
            raise UserError(
                f"{directory} is of another network: {name} is {there}, not of shape {shape}; "
                "give the model.py that it was trained with"
            )
    flat = np.concatenate([np.ravel(values[name]) for name in agent.shapes])
    agent.load(flat, values["observation_statistics"])


# --- playing ------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """One step of all games: the observations, the actions chosen, and the scores so far."""

    observations: np.ndarray  # [B, ...]
    state: np.ndarray  # [B, S], the recurrent state before the observations
    starts: np.ndarray  # [B], true at the first observation of a game
    action: Action
    returns: np.ndarray  # [B], of the games so far
    lengths: np.ndarray  # [B], env steps so far
    num_ended: int  # games that have ended and count


def quotas(episodes: int, num_envs: int) -> list[int]:
    """How many games each environment plays.

    The shares are fixed in advance: taking the first N games to end would favour short games.
    """
    share, rest = divmod(episodes, num_envs)
    return [share + (index < rest) for index in range(num_envs)]


def play(
    envs: VectorEnv[Any, Any, Any],
    agent: Actor,
    policy: Any,
    episodes: int,
    *,
    seed: int,
    on_decision: Callable[[Decision], object] = lambda _: None,
) -> list[Episode]:
    """Play `episodes` whole games; their scores ordered by environment, then by time.

    `on_decision` is called before every step, and may raise an exception to stop playing.
    """
    games = Games(quotas(episodes, envs.num_envs))
    for decision in moments(envs, agent, policy, games, seed=seed):
        on_decision(decision)
    return games.episodes


def moments(
    envs: VectorEnv[Any, Any, Any], agent: Actor, policy: Any, games: Games, *, seed: int
) -> Iterator[Decision]:
    """Play until `games` are over; each step is taken when the next decision is requested."""
    reset = Autoreset(envs)
    observations, _ = envs.reset(seed=seed)
    state = agent.initial_state(envs.num_envs)
    while not games.over:
        action = agent.act(observations, state, reset.starts)
        score = (games.returns.copy(), games.lengths.copy(), games.num_ended)
        yield Decision(observations, state, reset.starts, action, *score)
        observations, rewards, terminated, truncated, info = envs.step(
            policy.to_env(action.actions)
        )
        done = (terminated | truncated) & ~reset.dead
        games.add(rewards, done, ~reset.dead)
        observations, _ = reset.after(observations, info, done)
        state = action.state


class Games:
    """Scores of the games of each environment, up to its quota."""

    def __init__(self, quota: list[int]) -> None:
        self._quota = quota
        self._ended: list[list[Episode]] = [[] for _ in quota]
        self.returns = np.zeros(len(quota))
        self.lengths = np.zeros(len(quota), int)

    def add(self, rewards: np.ndarray, done: np.ndarray, played: np.ndarray) -> None:
        """Count one step of all environments."""
        self.returns[played] += rewards[played]
        self.lengths[played] += 1
        for i in np.flatnonzero(done):
            if len(self._ended[i]) < self._quota[i]:
                self._ended[i].append(_episode(self.returns[i], self.lengths[i]))
        self.returns[done] = 0.0
        self.lengths[done] = 0

    @property
    def num_ended(self) -> int:
        """Games that have ended and count."""
        return sum(len(ended) for ended in self._ended)

    @property
    def over(self) -> bool:
        """Whether every environment has played its quota."""
        return self.num_ended == sum(self._quota)

    @property
    def episodes(self) -> list[Episode]:
        """The games that have ended, ordered by environment, then by time."""
        return [episode for ended in self._ended for episode in ended]


def _episode(episode_return: float, length: int) -> Episode:
    if not np.isfinite(episode_return):
        raise UserError(
            f"a game of {count(length, 'env step')} came to a return of {episode_return}: "
            "mend the environment's rewards"
        )
    return Episode(float(episode_return), int(length))
