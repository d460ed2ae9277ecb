"""Choose interesting moments of a game."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from a3c.learn.agent import Agent
from a3c.play.evaluation import Decision, Games, moments
from a3c.play.stage import Envs

MAX_STEPS = 2000  # of a game; the observations of all these steps are kept in memory


def play_one(envs: Envs, agent: Agent, seed: int) -> list[Decision]:
    """The decisions of a game's first `MAX_STEPS` env steps."""
    game = moments(envs, agent, agent.network.policy, Games([1]), seed=seed)
    return [decision for decision, _ in zip(game, range(MAX_STEPS), strict=False)]


def telling(decisions: Sequence[Decision], count: int) -> list[Decision]:
    """Of each of `count` equal parts of a game, the moment just after the largest value change."""
    values = np.array([decision.action.values[0] for decision in decisions])
    change = np.abs(np.diff(values, prepend=values[:1]))
    parts = np.array_split(np.arange(len(decisions)), min(count, len(decisions)))
    return [decisions[int(part[np.argmax(change[part])])] for part in parts]
