"""The algorithm: `Learner.train` is the loop, `Learner.pushes` the update on one screen."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from a3c.config import Config
from a3c.learn import schedules
from a3c.learn.agent import Agent, Batch, Gradient
from a3c.learn.returns import NO_UPDATE, RETURN_STATISTICS_SIZE, gae, moments_update, normalize
from a3c.learn.rollout import FixedStepReturns, Player, Rollout, Stopwatch
from a3c.server.exchange import Push, Reply
from a3c.server.optimizers import own_step
from a3c.server.store import Store

log = logging.getLogger(__name__)


class Update(NamedTuple):
    reply: Reply  # the newest reply of the ps
    is_complete: bool  # true if no minibatch was dropped
    num_gradients: int
    metrics: dict[str, float]  # means over its minibatches


class Learner:
    """Pushes an agent's gradients to the ps and loads the newest weights into the agent."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        config: Config,
        stopwatch: Stopwatch,
        *,
        seed: int,
        turns: contextlib.AbstractContextManager[bool] | None = None,
    ) -> None:
        """`seed`, a different one for each worker, determines the minibatches.

        `turns` limits how many workers compute gradients at once; see `turns.py`.
        """
        run, learning = config.run, config.learning
        self._agent, self._store, self._config = agent, store, config
        self._stopwatch = stopwatch
        self._turns = turns or contextlib.nullcontext(False)
        self._rng = np.random.default_rng([seed, 2])
        self._num_optimizers = 2 if learning.value_optimizer == "own" else 1
        self._own_steps: list[Callable[..., list[np.ndarray]]] = []
        if learning.optimizer_statistics == "per-worker":
            size = store.layout.num_parameters
            self._own_steps = [own_step(learning, size) for _ in range(self._num_optimizers)]
        self._fixed_steps = FixedStepReturns(learning) if learning.return_steps else None
        # Return statistics of rollouts with too few complete samples.
        self._unsent = np.zeros(RETURN_STATISTICS_SIZE * config.env.normalize_rewards)
        self._returns: deque[float] = deque(maxlen=run.stop_worker_games or run.stop_window)
        self.reply = store.pull()
        self._last_step = np.zeros_like(self.reply.parameters)  # change of each weight by a step
        self._load(self.reply)

    def train(self, player: Player) -> Iterator[tuple[Rollout, Update]]:
        """Play rollouts and learn from each, until the player stops."""
        for rollout in player.rollouts():
            yield rollout, self.update(rollout)

    def update(self, rollout: Rollout) -> Update:
        """Learn from one rollout; afterwards the agent holds the newest or predicted weights."""
        self._overwrite_if_solved(rollout)
        if self._config.learning.ratio_limit:
            # The ratio corrects for the older weights that played. Without a ratio the first
            # gradient must be computed with the weights that played.
            self.refresh()
            self._stopwatch.lap("exchange")
        gradients = list(self.pushes(rollout))
        if not gradients:  # too few were complete, or all only reset
            return Update(self.refresh(), True, 0, {})
        rows = [gradient.parts for gradient in gradients]
        metrics = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        metrics |= {f"train/{name}": value for name, value in self._annealed._asdict().items()}
        if not self._config.learning.ratio_limit:
            del metrics["train/ratio_limit"]
        is_complete = all(gradient.is_finite for gradient in gradients)
        return Update(self.reply, is_complete, len(gradients), metrics)

    def pushes(self, rollout: Rollout) -> Iterator[Gradient]:
        """The update of Mnih et al. 2016, algorithm S3, for each minibatch of a rollout.

        Wait for a turn (`turns.py`). After a wait load the newest weights, as others have pushed.
        Compute a gradient with the local weights, push it to the ps, load the newest weights. A
        minibatch with a non-finite loss or gradient is dropped: one NaN would stay on the ps. The
        rest of the rollout is left out once the policy has diverged by 1.5 times `kl_limit`, except
        in the first epoch, because that epoch counts the env steps.
        """
        learning, parts = self._config.learning, self._config.share.minibatches
        annealed = self._annealed = schedules.after(self._config, self.reply.global_step)
        whole, advantage_update = self._estimate(rollout)
        self._stopwatch.lap("learn")
        statistics = self._unsent + rollout.return_statistics
        self._unsent = np.zeros_like(statistics) if len(whole.returns) else statistics
        for epoch in range(learning.epochs if len(whole.returns) else 0):
            for batch in minibatches(whole, parts, self._rng):
                if not batch.mask.any():  # only resets: a push would step without samples
                    continue
                with self._turns as has_waited:
                    if has_waited:  # others have pushed meanwhile
                        self._stopwatch.lap("wait")
                        self.refresh()
                        self._stopwatch.lap("exchange")
                    gradient = self._agent.gradient(batch, *annealed.of_loss)
                    self._stopwatch.lap("learn")
                    if epoch and 0 < 1.5 * learning.kl_limit < gradient.parts["loss/divergence"]:
                        return
                    num_updates, steps = self.reply.num_updates, 0
                    if gradient.is_finite:
                        steps = self._push(
                            gradient, batch, advantage_update, statistics, is_new=epoch == 0
                        )
                        advantage_update, statistics = NO_UPDATE, np.zeros_like(statistics)  # once
                    else:
                        self.refresh()
                    by_others = self.reply.num_updates - num_updates - steps
                    gradient.parts["train/staleness"] = float(by_others)
                    self._stopwatch.lap("exchange")
                yield gradient

    def _estimate(self, rollout: Rollout) -> tuple[Batch, np.ndarray]:
        """The samples of a rollout with advantages and returns, and the update of the moments.

        With `return_steps` there are none until `return_min_samples` have complete returns.
        """
        learning = self._config.learning
        if self._fixed_steps:
            rollout, advantages, returns = self._fixed_steps.complete(rollout)
        else:
            rewards, values, discounts = rollout.rewards, rollout.values, rollout.discounts
            bootstrap, lambda_ = rollout.bootstrap_value, learning.gae_lambda
            if self._config.recomputes_values:
                # Compute the values again with the newer weights that learn from the rollout. The
                # values of truncated games, which are in the rewards, stay as predicted in play.
                observations = np.vstack([rollout.observations, rollout.next_observations[None]])
                starts = np.vstack([rollout.starts, rollout.next_starts[None]])
                newest = self._agent.values(observations, rollout.state, starts)
                values, bootstrap = newest[:-1], newest[-1]
            advantages, returns = gae(rewards, values, bootstrap, discounts, lambda_)
        update = NO_UPDATE
        if learning.advantage_horizon:
            update = moments_update(advantages, rollout.mask, learning.advantage_horizon)
            moments = update[0] * self.reply.advantage_moments + update[1:]
            advantages = normalize(advantages, moments)
        kept = {name: value for name, value in rollout._asdict().items() if name in Batch._fields}
        return Batch(**kept, advantages=advantages, returns=returns), update

    def _push(
        self,
        gradient: Gradient,
        batch: Batch,
        advantage_update: np.ndarray,
        return_statistics: np.ndarray,
        *,
        is_new: bool,
    ) -> int:
        """Push a gradient and load the reply; the batch's env steps count only if `is_new`.

        If the value loss has its own optimizer, each loss has a push, and only the first counts env
        steps. Returns how many optimizer steps these pushes made.
        """
        new, steps = batch.mask * is_new, 0
        seen = self._agent.observation_statistics(batch.observations, new)
        statistics = np.concatenate([seen, return_statistics])
        for part, flat in enumerate(np.split(gradient.flat, self._num_optimizers)):
            rate = self._annealed.learning_rate
            if part:
                rate *= self._config.learning.critic_learning_rate_scale
                advantage_update, statistics = NO_UPDATE, np.zeros_like(statistics)
            if self._own_steps:  # the worker makes the optimizer's step; the ps only applies it
                flat, rate = self._own_steps[part](flat, rate)[0], 1.0
            push = Push(
                gradient=flat,
                learning_rate=rate,
                num_samples=int(np.count_nonzero(batch.mask)),
                num_steps=0 if part else int(np.count_nonzero(new)),
                statistics=statistics,
                advantage_update=advantage_update,
                is_of_value=bool(part),
            )
            self._load(self._store.push(push))
            steps += self.reply.stepped
        return steps

    def _overwrite_if_solved(self, rollout: Rollout) -> None:
        """Replace the weights on the ps by this worker's, if its last games reach the goal."""
        run, last = self._config.run, self._returns
        if run.push_winner and run.stop_at_return is not None:
            last.extend(episode.episode_return for episode in rollout.episodes)
            if len(last) == last.maxlen and np.mean(last) >= run.stop_at_return:
                last.clear()
                self._store.overwrite_parameters(self.reply.parameters)
                log.info(
                    "this worker's last games reach the goal: its weights replace those on the ps"
                )

    def refresh(self) -> Reply:
        return self._load(self._store.pull())

    def return_statistics(self) -> np.ndarray:
        return self.reply.statistics[-RETURN_STATISTICS_SIZE:]

    def _load(self, reply: Reply) -> Reply:
        """Load the newest weights, or those expected one optimizer step later.

        During one gradient the others' pushes make up to about four steps. The next one is expected
        to be like those since this worker's last reply: their mean is the change of the weights
        divided by their number. Chen et al. 2018, arXiv:1809.02839, predict weights in this way.
        """
        weights, before = reply.parameters, self.reply
        if self._config.loads_predicted_weights:
            if steps := reply.num_updates - before.num_updates:
                self._last_step = (weights - before.parameters) / np.float32(steps)
            weights = weights + self._last_step
        self._agent.load(weights, reply.statistics)
        self.reply = reply
        return reply


def minibatches(whole: Batch, count: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Cut a batch into `count` random parts.

    The parts are mixed from all time steps and environments, because consecutive samples are
    similar; they have shape `[1, N]`. With a recurrent network each part keeps whole environments,
    with their initial states, and there are at most as many parts as environments.
    """
    if count == 1:
        yield whole
        return
    rows = whole._asdict()
    state = rows.pop("state")
    if not state.shape[1]:
        rows = {name: array.reshape(1, -1, *array.shape[2:]) for name, array in rows.items()}
        state = np.zeros((whole.mask.size, 0), np.float32)
    size = len(state)
    for chosen in np.array_split(rng.permutation(size), min(count, size)):
        parts = {name: array[:, chosen] for name, array in rows.items()}
        yield Batch(**parts, state=state[chosen])
