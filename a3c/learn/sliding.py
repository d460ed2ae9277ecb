"""Returns of exactly N steps, which reach over the end of a rollout into the next ones."""

from __future__ import annotations

import numpy as np

from a3c.config import LearningConfig
from a3c.learn.returns import FloatArray, n_step
from a3c.learn.rollout import Rollout

_ROWS = (  # the parts of a rollout with one row for each time step
    *("observations", "actions", "rewards", "discounts", "values", "mask", "starts"),
    *("policy_parameters", "epsilon"),
)


class Sliding:
    """Keeps the samples that have not seen N further steps; for networks without a memory."""

    def __init__(self, learning: LearningConfig) -> None:
        assert learning.return_steps is not None
        self._steps, self._least = learning.return_steps, learning.return_min_samples
        self._lambda = learning.gae_lambda
        self._kept: dict[str, np.ndarray] = {}

    def complete(self, rollout: Rollout) -> tuple[Rollout, FloatArray, FloatArray]:
        """The samples that are complete now, with their advantages and returns.

        They are removed. If there are fewer than `return_min_samples`, there are none, and all
        wait for the next rollout. A kept sample has the value that was predicted when it was
        played.
        """
        whole = rollout._replace(epsilon=np.full_like(rollout.mask, rollout.epsilon))
        rows = {name: getattr(whole, name) for name in _ROWS}
        if self._kept:
            rows = {name: np.concatenate([self._kept[name], new]) for name, new in rows.items()}
        done = max(0, len(rows["mask"]) - self._steps + 1)
        if np.count_nonzero(rows["mask"][:done]) < max(1, self._least):
            done = 0
        # Copies, because the next rollout reuses the arrays.
        self._kept = {name: np.array(values[done:]) for name, values in rows.items()}
        rewards, values, discounts = rows["rewards"], rows["values"], rows["discounts"]
        advantages, returns = n_step(
            *(rewards, values, rollout.bootstrap_value, discounts, self._lambda, self._steps)
        )
        cut = {name: values[:done] for name, values in rows.items()}
        return rollout._replace(**cut), advantages[:done], returns[:done]
