"""Play whole games with a checkpoint's network, and keep the raw scores.

What learning does to a game (rewards clipped or scaled, episodes cut at lost lives) happens in the
rollout, not in the environments, so none of it is seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from a3c.errors import UserError
from a3c.learn.agent import Action, Agent
from a3c.learn.rollout import Actor
from a3c.play.scores import Summary, summarise
from a3c.process.console import count
from a3c.run import checkpoint, tensors
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.scores import Episode

__all__ = ["Decision", "Summary", "load", "play", "quotas", "summarise"]

MAX_ENVS = 8


# --- the agent ----------------------------------------------------------------------------------


def load(agent: Agent, directory: Path) -> None:
    """Give an agent the weights and observation statistics of a checkpoint.

    Raises DamagedCheckpointError where it can't be read, and UserError where it holds those of
    another network.
    """
    try:
        values = tensors.load(directory / checkpoint.PREFIX)
    except tensors.UNREADABLE as error:
        raise DamagedCheckpointError(str(error).splitlines()[0]) from None
    wanted = dict(zip(agent.layout.names, agent.layout.shapes, strict=True))
    wanted["observation_statistics"] = (agent.statistics_size,)
    for name, shape in wanted.items():
        if name not in values or values[name].shape != shape:
            there = f"of shape {values[name].shape}" if name in values else "missing"
            raise UserError(
                f"{directory} is of another network: {name} is {there}, not of shape {shape}; "
                "give the model.py that it was trained with"
            )
    agent.load(agent.layout.flatten(values), values["observation_statistics"])


# --- playing ------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """A moment of play: what is seen, what will be done about it, and how the games stand."""

    observations: np.ndarray  # [B, ...]
    state: np.ndarray  # [B, S], before the observations
    starts: np.ndarray  # [B], true at the first observation of a game
    action: Action
    returns: np.ndarray  # [B], of the games so far
    lengths: np.ndarray  # [B], env steps so far
    num_ended: int  # games that are over and count


def quotas(episodes: int, num_envs: int) -> list[int]:
    """How many games each environment plays.

    Settled in advance: to take the first N games to end, wherever they do, would favour short ones.
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
    """Play `episodes` whole games; their scores in the order of environments, then of time.

    `on_decision` is called before every step, and may raise to end the playing.
    """
    games = Games(quotas(episodes, envs.num_envs))
    for decision in moments(envs, agent, policy, games, seed=seed):
        on_decision(decision)
    return games.episodes


def moments(
    envs: VectorEnv[Any, Any, Any], agent: Actor, policy: Any, games: Games, *, seed: int
) -> Iterator[Decision]:
    """Play until `games` are over; every step is taken when the next moment is asked for."""
    mode = AutoresetMode(envs.metadata.get("autoreset_mode", "NextStep"))
    size = envs.num_envs
    observations, _ = envs.reset(seed=seed)
    state, starts = agent.initial_state(size), np.ones(size, bool)
    dead = np.zeros(size, bool)  # the coming step only resets
    while not games.over:
        action = agent.act(observations, state, starts)
        score = (games.returns.copy(), games.lengths.copy(), games.num_ended)
        yield Decision(observations, state, starts, action, *score)
        observations, rewards, terminated, truncated, _ = envs.step(policy.to_env(action.actions))
        done = (terminated | truncated) & ~dead
        games.add(rewards, done, ~dead)
        state, starts = action.state, done
        if mode == AutoresetMode.NEXT_STEP:
            starts, dead = dead, done
        elif mode == AutoresetMode.DISABLED and done.any():
            observations, _ = envs.reset(options={"reset_mask": done.copy()})


class Games:
    """Scores of the games of each environment, no more of them than its quota."""

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
        """Games that are over and count."""
        return sum(len(ended) for ended in self._ended)

    @property
    def over(self) -> bool:
        """Whether every environment has played its quota."""
        return self.num_ended == sum(self._quota)

    @property
    def episodes(self) -> list[Episode]:
        """The games that are over, in the order of environments, then of time."""
        return [episode for ended in self._ended for episode in ended]


def _episode(episode_return: float, length: int) -> Episode:
    if not np.isfinite(episode_return):
        raise UserError(
            f"a game of {count(length, 'env step')} came to a return of {episode_return}: "
            "mend the environment's rewards"
        )
    return Episode(float(episode_return), int(length))
