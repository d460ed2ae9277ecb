"""Play whole games, and the statistics of their raw scores.

Training clips and scales rewards and ends episodes at lost lives in the rollout, not in the
environments, so evaluation is unaffected by this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from a3c.errors import UserError
from a3c.learn.agent import Action, Agent
from a3c.learn.rollout import Autoreset
from a3c.process.console import count
from a3c.run.metrics import Episode

Envs = VectorEnv[Any, Any, Any]

MAX_ENVS = 8

_RESAMPLES = 10_000  # of the bootstrap
_CHUNK = 100  # resamples drawn at once, which bounds the memory for many games


class Decision(NamedTuple):
    """One step of all games: the observations, the actions chosen, and the scores so far."""

    observations: np.ndarray  # [B, ...]
    state: np.ndarray  # [B, S], the recurrent state before the observations
    starts: np.ndarray  # [B], true at the first observation of a game
    action: Action
    returns: np.ndarray  # [B], of the games so far
    lengths: np.ndarray  # [B], env steps so far


def play(
    envs: Envs,
    agent: Agent,
    episodes: int,
    *,
    seed: int,
    on_decision: Callable[[Decision], object] = lambda _: None,
) -> list[Episode]:
    """Play whole games, ordered by environment, then time; `on_decision` may raise to stop."""
    games = Games(episodes, envs.num_envs)
    for decision in decisions(envs, agent, games, seed=seed):
        on_decision(decision)
    return games.episodes


def decisions(envs: Envs, agent: Agent, games: Games, *, seed: int) -> Iterator[Decision]:
    """Play until `games` are over; each step is taken when the next decision is requested."""
    reset = Autoreset(envs)
    observations, _ = envs.reset(seed=seed)
    state = agent.initial_state(envs.num_envs)
    while not games.over:
        action = agent.act(observations, state, reset.starts)
        score = games.returns.copy(), games.lengths.copy()
        yield Decision(observations, state, reset.starts, action, *score)
        actions = agent.network.policy.to_env(action.actions)
        observations, rewards, terminated, truncated, info = envs.step(actions)
        done = (terminated | truncated) & ~reset.dead
        games.add(rewards, done, ~reset.dead)
        observations, _ = reset.after(observations, info, done)
        state = action.state


class Games:
    """Scores of `episodes` games, each environment playing a share that is fixed in advance.

    Taking the first games to end would favour short games.
    """

    def __init__(self, episodes: int, num_envs: int = 1) -> None:
        share, rest = divmod(episodes, num_envs)
        self._quota = [share + (index < rest) for index in range(num_envs)]
        self._total = episodes
        self._ended: list[list[Episode]] = [[] for _ in self._quota]
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, int)

    def add(self, rewards: np.ndarray, done: np.ndarray, played: np.ndarray) -> None:
        """Count one step of all environments."""
        self.returns[played] += rewards[played]
        self.lengths[played] += 1
        for i in np.flatnonzero(done):
            if len(self._ended[i]) == self._quota[i]:
                continue
            episode = Episode(float(self.returns[i]), int(self.lengths[i]))
            if not math.isfinite(episode.episode_return):
                raise UserError(
                    f"a game of {count(episode.length, 'env step')} came to a return of "
                    f"{episode.episode_return}: mend the environment's rewards"
                )
            self._ended[i].append(episode)
        self.returns[done] = 0.0
        self.lengths[done] = 0

    @property
    def num_ended(self) -> int:
        """Games that have ended and count."""
        return sum(len(ended) for ended in self._ended)

    @property
    def over(self) -> bool:
        """Whether every environment has played its share."""
        return self.num_ended == self._total

    @property
    def episodes(self) -> list[Episode]:
        """The games that have ended, ordered by environment, then by time."""
        return [episode for ended in self._ended for episode in ended]


class Summary(NamedTuple):
    """Statistics of whole games; None where one game isn't enough."""

    episodes: int
    mean: float
    median: float
    stderr: float | None  # standard error of the mean
    min: float
    max: float
    ci95: tuple[float, float] | None  # of the mean, by bootstrap
    mean_length: float  # env steps


def summarise(games: Sequence[Episode]) -> Summary:
    """The statistics of at least one game."""
    scores = np.array([game.episode_return for game in games])
    several = len(games) > 1
    # The 95 % percentile bootstrap interval of the mean (Efron 1979), always of the same draws.
    rng, size = np.random.default_rng(0), (_CHUNK, len(scores))
    draws = (rng.integers(len(scores), size=size) for _ in range(_RESAMPLES // _CHUNK))
    means = np.concatenate([scores[draw].mean(axis=1) for draw in draws])
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return Summary(
        episodes=len(games),
        mean=float(scores.mean()),
        median=float(np.median(scores)),
        stderr=float(scores.std(ddof=1) / math.sqrt(len(games))) if several else None,
        min=float(scores.min()),
        max=float(scores.max()),
        ci95=(low, high) if several else None,
        mean_length=float(np.mean([game.length for game in games])),
    )
