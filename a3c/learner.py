"""One asynchronous update: gradient of the local weights, push, count, pull."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from a3c import schedules
from a3c.agent import Agent, Batch
from a3c.config import Config
from a3c.returns import gae
from a3c.rollout import Rollout, Stopwatch
from a3c.store import Reply, Store

WEIGHTS = "weights"
REMEDIES = {
    WEIGHTS: "give a lower --learning-rate, and go on from an older checkpoint",
    "observations": "mend the environment, which gives them",
    "rewards": "mend the environment, which gives them, or give a --reward-clip",
    "losses": "give a lower --reward-scale or --learning-rate, or mend the network",
}


class Update(NamedTuple):
    """What one update did."""

    reply: Reply
    pushed: bool
    metrics: dict[str, float]


class Learner:
    """Keeps a worker's agent in step with the ps."""

    def __init__(self, agent: Agent, store: Store, config: Config, stopwatch: Stopwatch) -> None:
        self._agent = agent
        self._store = store
        self._config = config
        self._stopwatch = stopwatch
        self.reply = self._adopt(store.pull())

    def update(self, rollout: Rollout) -> Update:
        """Learn from one rollout; afterwards the agent has the newest weights.

        A rollout whose loss or gradient is not finite is dropped: one NaN would stay on the ps.
        """
        learning, step = self._config.learning, self.reply.global_step
        learning_rate = schedules.learning_rate(self._config, step)
        entropy_weight = schedules.entropy_weight(self._config, step)
        advantages, returns = gae(
            rollout.rewards,
            rollout.values,
            rollout.bootstrap_value,
            rollout.discounts,
            learning.gae_lambda,
        )
        gradient = self._agent.gradient(_batch(rollout, advantages, returns), entropy_weight)
        self._stopwatch.lap("learn")
        known = self.reply
        if gradient.is_finite:
            moments = self._agent.moments(rollout.observations, rollout.mask)
            steps = rollout.num_env_steps
            reply = self._store.exchange(gradient.flat, moments, steps, learning_rate)
        else:
            reply = self._store.pull()
        self._adopt(reply)
        self._stopwatch.lap("exchange")
        metrics = {
            **gradient.parts,
            "train/gradient_norm": gradient.norm,
            "train/learning_rate": learning_rate,
            "train/entropy_weight": entropy_weight,
            "train/epsilon": schedules.epsilon_greedy(self._config, step),
            "train/staleness": reply.num_updates - known.num_updates - gradient.is_finite,
        }
        return Update(reply, gradient.is_finite, metrics)

    def refresh(self) -> Reply:
        """Take over what is new without an update."""
        return self._adopt(self._store.pull())

    def _adopt(self, reply: Reply) -> Reply:
        self._agent.load(reply.parameters, reply.statistics)
        self.reply = reply
        return reply


def not_finite(rollout: Rollout, parameters: np.ndarray) -> str:
    """What is at the bottom of a loss that isn't finite: one of the keys of `REMEDIES`."""
    for name, values in (
        (WEIGHTS, parameters),
        ("observations", rollout.observations),
        ("rewards", rollout.rewards),
    ):
        if not np.isfinite(values).all():
            return name
    return "losses"


def _batch(rollout: Rollout, advantages: np.ndarray, returns: np.ndarray) -> Batch:
    return Batch(
        observations=rollout.observations,
        actions=rollout.actions,
        advantages=advantages,
        returns=returns,
        mask=rollout.mask,
        starts=rollout.starts,
        state=rollout.state,
    )
