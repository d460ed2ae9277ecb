"""One asynchronous update: compute the gradient, push it, count the steps, pull the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from a3c.config import Config
from a3c.learn import minibatches, schedules
from a3c.learn.agent import Agent, Batch, Gradient
from a3c.learn.returns import RunningMoments, gae
from a3c.learn.rollout import Rollout, Stopwatch
from a3c.learn.schedules import Annealed
from a3c.server.exchange import Push, Reply
from a3c.server.store import Store

WEIGHTS = "weights"
REMEDIES = {
    WEIGHTS: "give a lower --learning-rate, and go on from an older checkpoint",
    "observations": "mend the environment, which gives them",
    "rewards": "mend the environment, which gives them, or give a --reward-clip",
    "losses": "give a lower --reward-scale or --learning-rate, or mend the network",
}


class Update(NamedTuple):
    """The result of learning from one rollout."""

    reply: Reply  # the newest reply of the ps
    pushed: bool  # true if no minibatch was dropped
    metrics: dict[str, float]  # means over its minibatches


class Learner:
    """Pushes an agent's gradients to the ps and loads the new weights into the agent."""

    def __init__(
        self, agent: Agent, store: Store, config: Config, stopwatch: Stopwatch, *, seed: int
    ) -> None:
        """`seed`, a different one for each worker, determines the minibatches."""
        self._agent = agent
        self._store = store
        self._config = config
        self._stopwatch = stopwatch
        self._rng = np.random.default_rng(seed)
        self._moments = RunningMoments(config.learning.advantage_horizon)
        self._staleness = 0
        self.reply = self._load(store.pull())

    def update(self, rollout: Rollout) -> Update:
        """Learn from one rollout; afterwards the agent has the newest weights.

        A minibatch with a non-finite loss or gradient is dropped: one NaN would stay on the ps.
        """
        annealed = schedules.after(self._config, self.reply.global_step)
        gradients = list(self.pushes(rollout))
        metrics = {
            **_means([gradient.parts for gradient in gradients]),
            "train/gradient_norm": float(np.mean([gradient.norm for gradient in gradients])),
            "train/learning_rate": annealed.learning_rate,
            "train/entropy_weight": annealed.entropy_weight,
            "train/epsilon": annealed.epsilon,
            "train/staleness": self._staleness,
        }
        if self._config.learning.ratio_limit:
            metrics["train/ratio_limit"] = annealed.ratio_limit
        return Update(self.reply, all(gradient.is_finite for gradient in gradients), metrics)

    def pushes(self, rollout: Rollout) -> Iterator[Gradient]:
        """Learn from one rollout; yield each gradient after the reply to its push is loaded."""
        annealed = schedules.after(self._config, self.reply.global_step)
        learning = self._config.learning
        whole = _batch(rollout, learning.gae_lambda)
        if learning.advantage_horizon:
            whole = whole._replace(advantages=self._moments.normalize(whole.advantages, whole.mask))
        for epoch in range(learning.epochs):
            for batch in minibatches.cut(whole, self._config.share.minibatches, self._rng):
                yield self._learn(batch, annealed, is_new=epoch == 0)

    def refresh(self) -> Reply:
        """Load the newest weights without a push."""
        return self._load(self._store.pull())

    def _learn(self, batch: Batch, annealed: Annealed, *, is_new: bool) -> Gradient:
        """Push a batch's gradient and load the reply; env steps count in the first epoch only."""
        gradient = self._agent.gradient(batch, annealed.entropy_weight, annealed.ratio_limit)
        self._stopwatch.lap("learn")
        known = self.reply.num_updates
        if gradient.is_finite:
            mask = batch.mask if is_new else np.zeros_like(batch.mask)
            push = Push(
                gradient=gradient.packed,
                unit=gradient.unit,
                learning_rate=annealed.learning_rate,
                num_samples=int(np.count_nonzero(batch.mask)),
                num_steps=int(np.count_nonzero(mask)),
                moments=self._agent.moments(batch.observations, mask),
            )
            reply = self._load(self._store.push(push))
            self._staleness = reply.num_updates - known - reply.stepped
        else:
            self._staleness = self.refresh().num_updates - known
        self._stopwatch.lap("exchange")
        return gradient

    def _load(self, reply: Reply) -> Reply:
        self._agent.load(reply.parameters, reply.statistics)
        self.reply = reply
        return reply


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean of every number over dictionaries with the same keys."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def not_finite(rollout: Rollout, parameters: np.ndarray) -> str:
    """The cause of a loss that isn't finite: one of the keys of `REMEDIES`."""
    for name, values in (
        (WEIGHTS, parameters),
        ("observations", rollout.observations),
        ("rewards", rollout.rewards),
    ):
        if not np.isfinite(values).all():
            return name
    return "losses"


def _batch(rollout: Rollout, gae_lambda: float) -> Batch:
    advantages, returns = gae(
        rollout.rewards,
        rollout.values,
        rollout.bootstrap_value,
        rollout.discounts,
        gae_lambda,
    )
    return Batch(
        observations=rollout.observations,
        actions=rollout.actions,
        advantages=advantages,
        returns=returns,
        mask=rollout.mask,
        starts=rollout.starts,
        state=rollout.state,
        policy_parameters=rollout.policy_parameters,
        epsilon=np.full_like(rollout.mask, rollout.epsilon),
    )
