"""Annealed settings: learning rate, entropy weight, ratio limit, random actions.

Each is a pure function of the configuration and the cluster's env steps so far, so all workers
agree without communication, and a resumed run continues with the same values, unless it is resumed
for longer: without `anneal_steps` the schedules then end later too.
"""

from typing import NamedTuple

import numpy as np

from a3c.config import Config


class Annealed(NamedTuple):
    learning_rate: float
    entropy_weight: float
    ratio_limit: float
    epsilon: float  # the probability of a random action

    @property
    def of_loss(self) -> tuple[float, float]:
        """The settings that the loss takes, in the order of `Agent.gradient`."""
        return self.entropy_weight, self.ratio_limit


def after(config: Config, env_steps: int) -> Annealed:
    """All annealed settings after `env_steps`; those without a final value are constant."""
    learning, windows = config.learning, config.windows

    def between(start: float, end: float | None, window: str = "anneal") -> float:
        if end is None:
            return start
        return float(np.interp(env_steps, windows[window], (start, end)))

    rate, final_rate = config.initial_learning_rate, None
    if learning.learning_rate_schedule == "linear":
        final_rate = learning.learning_rate_final
        if learning.learning_rate_range:  # a lower rate that was drawn stays as it is
            final_rate = min(rate, final_rate)
    return Annealed(
        between(rate, final_rate),
        between(learning.entropy_weight, learning.entropy_weight_final, "entropy_anneal"),
        between(learning.ratio_limit, learning.ratio_limit_final, "ratio_limit_anneal"),
        between(learning.epsilon_greedy, learning.epsilon_greedy_final, "epsilon_anneal"),
    )
