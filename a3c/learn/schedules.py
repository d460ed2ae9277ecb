"""Annealed settings: learning rate, entropy weight, ratio limit, random actions.

Each is a pure function of the configuration and the cluster's env steps so far, so all workers
agree without communication, and a resumed run continues with the same values.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from a3c.config import Config


class Annealed(NamedTuple):
    """The annealed settings at one env step."""

    learning_rate: float
    entropy_weight: float
    ratio_limit: float
    epsilon: float  # the probability of a random action


def after(config: Config, env_steps: int) -> Annealed:
    """All annealed settings after `env_steps`."""
    functions = (learning_rate, entropy_weight, ratio_limit, epsilon_greedy)
    return Annealed(*(function(config, env_steps) for function in functions))


def initial_learning_rate(config: Config) -> float:
    """The learning rate at the start: as configured, or drawn once per run from its range.

    The draw is log-uniform, as in the experiments of Mnih et al. 2016 (arXiv:1602.01783). It
    depends only on the run's seed and the range, so all workers and a resumed run get the same.
    """
    if not config.learning.learning_rate_range:
        return config.learning.learning_rate
    low, high = config.learning.learning_rate_range
    generator = random.Random(f"learning rate of run {config.run.seed}")
    rate = math.exp(generator.uniform(math.log(low), math.log(high)))
    return min(max(rate, low), high)  # exp(log(x)) may differ from x by a rounding error


def learning_rate(config: Config, env_steps: int) -> float:
    """The learning rate after `env_steps`: constant, or linear until `config.anneal_steps`."""
    start = initial_learning_rate(config)
    if config.learning.learning_rate_schedule == "constant":
        return start
    return _linear(start, config.learning.learning_rate_final, _progress(config, env_steps))


def entropy_weight(config: Config, env_steps: int) -> float:
    """The weight of the entropy after `env_steps`: constant unless a final weight is set."""
    start, end = config.learning.entropy_weight, config.learning.entropy_weight_final
    return start if end is None else _linear(start, end, _progress(config, env_steps))


def ratio_limit(config: Config, env_steps: int) -> float:
    """The ratio limit after `env_steps`: constant unless a final limit is set."""
    start, end = config.learning.ratio_limit, config.learning.ratio_limit_final
    return start if end is None else _linear(start, end, _progress(config, env_steps))


def epsilon_greedy(config: Config, env_steps: int) -> float:
    """The probability of a uniformly random action after `env_steps`: linear, then constant."""
    learning = config.learning
    progress = _progress(config, env_steps)
    return _linear(learning.epsilon_greedy, learning.epsilon_greedy_final, progress)


def _progress(config: Config, env_steps: int) -> float:
    """The finished share of the annealing: 0 until its start, 1 at its end, then above 1."""
    start = config.learning.anneal_start
    return max(0.0, (env_steps - start) / (config.anneal_steps - start))


def _linear(start: float, end: float, progress: float) -> float:
    """Interpolate from `start` to `end`; exactly `end` from progress 1 on."""
    return end if progress >= 1.0 else start + (end - start) * progress
