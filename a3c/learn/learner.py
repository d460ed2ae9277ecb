"""The update: play a rollout, compute gradients, push each to the ps, load the newest weights."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from a3c.config import Config, RunConfig
from a3c.learn import schedules
from a3c.learn.agent import Agent, Batch, Gradient
from a3c.learn.returns import NO_UPDATE, NUM_OF_RETURNS, gae, moments_update, normalize
from a3c.learn.rollout import Player, Rollout, Sliding, Stopwatch
from a3c.run.metrics import Episode
from a3c.server.exchange import Push, Reply
from a3c.server.optimizers import OwnStatistics
from a3c.server.store import Store

log = logging.getLogger(__name__)


class Update(NamedTuple):
    """The result of learning from one rollout."""

    reply: Reply  # the newest reply of the ps
    pushed: bool  # true if no minibatch was dropped
    num_pushes: int
    metrics: dict[str, float]  # means over its minibatches


class Winner:
    """Tells when a worker's own last games reach the run's goal."""

    def __init__(self, run: RunConfig) -> None:
        self._goal = run.stop_at_return
        self._returns: deque[float] = deque(maxlen=run.stop_worker_games or run.stop_window)

    def wins(self, episodes: Sequence[Episode]) -> bool:
        """Whether the last games reach the goal with these; it then begins to count again."""
        self._returns.extend(episode.episode_return for episode in episodes)
        is_full = len(self._returns) == self._returns.maxlen
        if self._goal is None or not is_full or np.mean(self._returns) < self._goal:
            return False
        self._returns.clear()
        return True


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
        self._own: OwnStatistics | None = None
        if config.learning.optimizer_statistics == "per-worker":
            self._own = OwnStatistics(config.learning, store.layout.num_parameters)
        self._winner = Winner(config.run) if config.run.push_winner else None
        self._sliding = Sliding(config.learning) if config.learning.return_steps else None
        self._staleness = 0
        self._annealed: schedules.Annealed
        self.reply = self.refresh()

    def train(self, player: Player) -> Iterator[tuple[Rollout, Update]]:
        """Play a rollout and learn from it, again and again, until the player leaves."""
        for rollout in player.rollouts():
            yield rollout, self.update(rollout)

    def update(self, rollout: Rollout) -> Update:
        """Learn from one rollout; afterwards the agent has the newest weights."""
        if self._winner and self._winner.wins(rollout.episodes):
            self._store.take_over(self.reply.parameters)
            log.info("the last games of this worker reach the goal: the ps take over its weights")
        self.catch_up()
        gradients = list(self.pushes(rollout))
        if not gradients:  # no sample was complete
            return Update(self.refresh(), True, 0, {})
        rows = [{**each.parts, "train/gradient_norm": each.norm} for each in gradients]
        metrics = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        metrics["train/staleness"] = self._staleness
        metrics |= {f"train/{name}": value for name, value in self._annealed._asdict().items()}
        if not self._config.learning.ratio_limit:
            del metrics["train/ratio_limit"]
        pushed = all(gradient.is_finite for gradient in gradients)
        return Update(self.reply, pushed, len(gradients), metrics)

    def catch_up(self) -> None:
        """Load the newest weights before learning, where a ratio limit allows that.

        The limit's ratio corrects for the older weights that played. Otherwise the first gradient
        is as old as the rollout. Without a limit it belongs to the weights that played.
        """
        if self._config.learning.ratio_limit:
            self.refresh()

    def pushes(self, rollout: Rollout) -> Iterator[Gradient]:
        """Push the gradient of each minibatch; yields it once the new weights are loaded.

        A minibatch with a non-finite loss or gradient is dropped: one NaN would stay on the ps.
        After the first epoch, which counts the env steps, a minibatch whose divergence is above 1.5
        times `kl_limit` is not pushed, and the rest of the rollout is left out.
        """
        learning, share = self._config.learning, self._config.share
        annealed = self._annealed = schedules.after(self._config, self.reply.global_step)
        bootstrap, discounts = rollout.bootstrap_value, rollout.discounts
        if self._sliding:
            rollout, advantages, returns = self._sliding.complete(rollout)
            if not len(returns):
                return
        else:
            advantages, returns = gae(
                rollout.rewards, rollout.values, bootstrap, discounts, learning.gae_lambda
            )
        news, return_news = NO_UPDATE, rollout.return_statistics
        if learning.advantage_horizon:
            news = moments_update(advantages, rollout.mask, learning.advantage_horizon)
            moments = news[0] * self.reply.advantage_moments + news[1:]
            advantages = normalize(advantages, moments)
        kept = {name: value for name, value in rollout._asdict().items() if name in Batch._fields}
        kept["epsilon"] = np.full_like(rollout.mask, rollout.epsilon)
        whole = Batch(**kept, advantages=advantages, returns=returns)
        for epoch in range(learning.epochs):
            for batch in minibatches(whole, share.minibatches, self._rng):
                gradient = self._agent.gradient(
                    batch, annealed.entropy_weight, annealed.ratio_limit
                )
                self._stopwatch.lap("learn")
                if epoch and 0 < 1.5 * learning.kl_limit < gradient.parts["loss/divergence"]:
                    return
                num_updates = self.reply.num_updates
                if gradient.is_finite:
                    is_new = batch.mask * (epoch == 0)  # env steps count in the first epoch only
                    flat, rate = gradient.flat, annealed.learning_rate
                    if self._own:
                        flat, rate = self._own.step(flat, rate), 1.0
                    push = Push(
                        gradient=flat,
                        learning_rate=rate,
                        num_samples=int(np.count_nonzero(batch.mask)),
                        num_steps=int(np.count_nonzero(is_new)),
                        moments=np.concatenate(
                            [self._agent.moments(batch.observations, is_new), return_news]
                        ),
                        advantage_update=news,
                    )
                    # The first push has taken these along.
                    news, return_news = NO_UPDATE, np.zeros_like(return_news)
                    reply = self._load(self._store.push(push))
                    self._staleness = reply.num_updates - num_updates - reply.stepped
                else:
                    self._staleness = self.refresh().num_updates - num_updates
                self._stopwatch.lap("exchange")
                yield gradient

    def refresh(self) -> Reply:
        """Load the newest weights without a push."""
        return self._load(self._store.pull())

    def return_statistics(self) -> np.ndarray:
        """The newest statistics of all workers' returns, for `normalize_rewards`."""
        return self.reply.statistics[-NUM_OF_RETURNS:]

    def _load(self, reply: Reply) -> Reply:
        self._agent.load(reply.parameters, reply.statistics)
        self.reply = reply
        return reply


def minibatches(whole: Batch, count: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Cut a batch into `count` random parts.

    The parts are mixed from all time steps and environments, because consecutive samples are
    similar; they have shape `[1, N]`. With a recurrent network each part keeps whole environments,
    with their initial states, and there are at most as many parts as environments.
    """
    steps = {name: rows for name, rows in whole._asdict().items() if name != "state"}
    if count == 1:
        yield whole
    elif whole.state.shape[1]:
        envs = whole.mask.shape[1]
        for chosen in np.array_split(rng.permutation(envs), min(count, envs)):
            parts = {name: rows[:, chosen] for name, rows in steps.items()}
            yield Batch(**parts, state=whole.state[chosen])
    else:
        flat = {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in steps.items()}
        size = whole.mask.size
        for chosen in np.array_split(rng.permutation(size), min(count, size)):
            parts = {name: rows[None, chosen] for name, rows in flat.items()}
            yield Batch(**parts, state=np.zeros((len(chosen), 0), np.float32))
