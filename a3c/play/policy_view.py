"""A policy's parameters in readable form: action probabilities, means and deviations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from a3c.config import EnvConfig
from a3c.env import atari
from a3c.net.distributions import Categorical, Gaussian, MultiCategorical, Policy

UNBOUNDED = 3.0  # half the axis of an action without bounds

# Action names of environments that don't provide any.
_NAMES = {
    "CartPole": ("← push", "push →"),
    "MountainCar": ("← push", "coast", "push →"),
    "Acrobot": ("torque −", "none", "torque +"),
    "LunarLander": ("coast", "← engine", "main engine", "engine →"),
}
_ARROWS = {
    "UPRIGHT": "↗",
    "UPLEFT": "↖",
    "DOWNRIGHT": "↘",
    "DOWNLEFT": "↙",
    "UP": "↑",
    "RIGHT": "→",
    "LEFT": "←",
    "DOWN": "↓",
}


class Choice(NamedTuple):
    """One of several discrete actions."""

    name: str
    probability: float
    chosen: bool


class Reading(NamedTuple):
    """One number of an action, as the environment gets it: within its bounds."""

    name: str
    low: float
    high: float
    mean: float
    lower: float  # mean minus one standard deviation
    upper: float
    action: float


PolicyRow = Choice | Reading


def view_policy(
    policy: Policy,
    space: Space[Any],
    parameters: np.ndarray,
    action: np.ndarray,
    names: Sequence[str],
) -> list[PolicyRow]:
    """One row for each choice or number; none for a policy of the user's own."""
    if isinstance(policy, Categorical | MultiCategorical):
        rows: list[PolicyRow] = []
        sizes = space.nvec if isinstance(space, MultiDiscrete) else [len(parameters)]
        bounds = np.cumsum(sizes)[:-1]
        groups = np.split(np.array(names), bounds), np.split(parameters, bounds)
        for group, logits, chosen in zip(*groups, np.atleast_1d(action), strict=True):
            weights = np.exp(logits - logits.max(), dtype=np.float64)
            choices = enumerate(zip(group, weights / weights.sum(), strict=True))
            rows += [
                Choice(str(name), float(p), index == int(chosen)) for index, (name, p) in choices
            ]
        return rows
    if isinstance(policy, Gaussian) and isinstance(space, Box):
        mean, log_deviation = np.split(parameters, 2)
        deviation = np.exp(log_deviation)
        points = np.stack([mean, mean - deviation, mean + deviation, action])  # [4, D]
        means, lower, upper, taken = policy.to_env(points).reshape(4, -1).tolist()
        lows = np.where(np.isfinite(space.low), space.low, -UNBOUNDED).ravel().tolist()
        highs = np.where(np.isfinite(space.high), space.high, UNBOUNDED).ravel().tolist()
        columns = zip(names, lows, highs, means, lower, upper, taken, strict=True)
        return [Reading(*column) for column in columns]
    return []


# --- names --------------------------------------------------------------------------------------


def action_names(config: EnvConfig, space: Space[Any]) -> list[str]:
    """A name for each choice or number of an action space, in the order of `view_policy`."""
    if isinstance(space, MultiDiscrete):
        return [f"{index}: {k}" for index, n in enumerate(space.nvec) for k in range(n)]
    if isinstance(space, Discrete):
        names = _known_names(config) or []
        chosen = config.actions or range(len(names))
        names = [names[index] for index in chosen if index < len(names)]
        first = int(space.start)
        plain = [str(index) for index in config.actions or range(first, first + int(space.n))]
        return names if len(names) == space.n else plain
    size = int(np.prod(space.shape or (1,)))
    return ["action"] if size == 1 else [f"action {index}" for index in range(size)]


def _known_names(config: EnvConfig) -> list[str] | None:
    name = config.env_id.rpartition(":")[2]
    game = atari.find(name)
    if game is None:
        words = _NAMES.get(name.rpartition("-v")[0])
        return list(words) if words else None
    env: Any = gymnasium.make(game.env_id, **config.env_kwargs)
    try:
        meanings: list[str] = env.unwrapped.get_action_meanings()
    finally:
        env.close()
    names = []
    for meaning in meanings:
        if game.rom == "pong":  # right and left move the paddle up and down
            meaning = meaning.replace("RIGHT", "UP").replace("LEFT", "DOWN")
        direction = meaning.removesuffix("FIRE")  # UPRIGHTFIRE becomes "↗ fire"
        parts = [_ARROWS.get(direction, direction.lower())] if direction else []
        names.append(" ".join([*parts, "fire"] if meaning.endswith("FIRE") else parts))
    return names
