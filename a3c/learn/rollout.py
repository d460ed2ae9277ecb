"""Play environments with fixed weights, in any autoreset mode of Gymnasium; yield rollouts."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from a3c.config import Config, LearningConfig
from a3c.config.user_code import describe
from a3c.env import seeding, wrappers
from a3c.errors import PlayError, UserError
from a3c.learn.returns import RETURN_STATISTICS_SIZE, discounted_so_far, n_step, return_deviation
from a3c.net.observations import channels_last, channels_last_space
from a3c.process.signals import Leaving
from a3c.run.metrics import Episode

_ROWS = (  # the parts of a rollout with one row for each time step
    *("observations", "actions", "rewards", "discounts", "values", "mask", "starts"),
    *("policy_parameters", "epsilon"),
)


class Rollout(NamedTuple):
    """T steps of B environments; its arrays are reused by the next rollout."""

    observations: np.ndarray  # [T, B, ...], channels last: `a3c.net.observations`
    actions: np.ndarray  # [T, B, ...]
    rewards: np.ndarray  # [T, B], for learning; with γ·V(final observation) added at truncations
    discounts: np.ndarray  # [T, B], gamma, or 0 at the last step of a return
    values: np.ndarray  # [T, B]
    bootstrap_value: np.ndarray  # [B]
    next_observations: np.ndarray  # [B, ...], the observations after the last row
    next_starts: np.ndarray  # [B], true where they are the first of a game
    mask: np.ndarray  # [T, B], 1 where the row trains
    starts: np.ndarray  # [T, B], true at the first observation of a game
    state: np.ndarray  # [B, S], the recurrent state before the first row
    policy_parameters: np.ndarray  # [T, B, P], of the distribution that the actions are drawn from
    epsilon: np.ndarray  # [T, B], the probability of a uniformly random action
    episodes: list[Episode]  # games that ended in this rollout
    info: dict[str, list[float]]  # the values of `--info-metrics`, by name
    return_statistics: np.ndarray  # of the running returns; empty without `normalize_rewards`


class PlayedStep(NamedTuple):
    """One step of all games: the observations, the actions chosen, and the scores so far."""

    observations: np.ndarray  # [B, ...]
    state: np.ndarray  # [B, S], the recurrent state before the observations
    starts: np.ndarray  # [B], true at the first observation of a game
    action: Any  # an Action
    returns: np.ndarray  # [B], of the games so far
    lengths: np.ndarray  # [B], env steps so far


class Stopwatch:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self._totals: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._clock()
        self._totals[name] = self._totals.get(name, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Seconds per name since the last call."""
        totals, self._totals = self._totals, {}
        return totals


class Autoreset:
    """Starts new games in a vector environment, whatever its autoreset mode, and adds up scores.

    `starts` is true where the next observation is the first of a game, and `dead` where the next
    step only resets: such a step has no reward and must not train.
    """

    def __init__(self, envs: VectorEnv) -> None:
        self._envs = envs
        self.mode = AutoresetMode(envs.metadata.get("autoreset_mode", "NextStep"))
        self.starts = np.ones(envs.num_envs, bool)
        self.dead = np.zeros(envs.num_envs, bool)
        self.returns, self.lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, int)

    def count(self, rewards: np.ndarray, done: np.ndarray) -> list[tuple[int, Episode]]:
        """Add a step to the scores; returns the games that ended, with their environments."""
        if np.count_nonzero(self.dead):
            rewards = np.where(self.dead, 0.0, rewards)
        self.returns += np.asarray(rewards)  # jax has arrays of its own
        self.lengths += ~self.dead
        games = map(Episode, self.returns[done].tolist(), self.lengths[done].tolist())
        ended = list(zip(np.flatnonzero(done).tolist(), games, strict=True))
        if ended:
            self.returns[done], self.lengths[done] = 0.0, 0
        return ended

    def after(self, observations: Any, info: Any, done: np.ndarray) -> tuple[Any, Any]:
        """Call after every step with its results; returns the observations and info to use next."""
        self.starts = done
        if self.mode == AutoresetMode.NEXT_STEP:
            self.starts, self.dead = self.dead, done
        elif self.mode == AutoresetMode.DISABLED and done.any():
            return self._envs.reset(options={"reset_mask": done.copy()})
        return observations, info


class EnvironmentErrors(AbstractContextManager[Any, None]):
    """Turns an environment's exceptions into PlayError, to tell them from our own bugs."""

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        is_ours = isinstance(error, UserError | Leaving)
        if isinstance(error, Exception | SystemExit) and not is_ours:
            raise PlayError(f"the environment raised an error: {describe(error)}") from error


def info_numbers(
    info: dict[str, Any], name: str, done: np.ndarray, played: np.ndarray
) -> Iterator[float]:
    """The finite numbers called `name` in the info of a step; `a/b` may also be b in the table a.

    Environments that only reset in this step don't count. An environment that ended and was reset
    in the same step has its numbers in `final_info`; ale-py gives none for such a step.
    """
    final = info.get("final_info", {} if "final_obs" in info else None)
    if final is not None and not isinstance(final, dict):  # the environment's own entry
        final = {}
    places = [(info, played)] if final is None else [(final, done), (info, played & ~done)]
    for source, rows in places:
        *tables, key = [name] if name in source else name.split("/")
        for table in tables:
            inner = source.get(table)
            source = inner if isinstance(inner, dict) else {}
        values, is_given = source.get(key), source.get(f"_{key}", True)
        if isinstance(values, np.ndarray) and values.shape == rows.shape:
            for value in values[rows & is_given]:
                if isinstance(value, int | float | np.integer | np.floating | np.bool_):
                    with suppress(OverflowError):  # an int above 1e308
                        if math.isfinite(number := float(value)):
                            yield number


class Player:
    """Plays environments continuously; the weights may change between two rollouts."""

    def __init__(
        self,
        envs: VectorEnv,
        actor: Any,
        policy: Any,
        config: Config,
        *,
        seed: int,
        epsilon: Callable[[], float] = lambda: 0.0,
        return_statistics: Callable[[], np.ndarray] = lambda: np.zeros(RETURN_STATISTICS_SIZE),
        stopwatch: Stopwatch | None = None,
        go_on: Callable[[], bool] = lambda: True,
        on_step: Callable[[PlayedStep], object] | None = None,
    ) -> None:
        """`actor` has `act`, `value` and `initial_state` like an Agent.

        `return_statistics` are those of all workers, for `normalize_rewards`. `go_on` is called
        after every env step; if it returns False, the rollout is dropped.
        """
        assert isinstance(envs.single_observation_space, Box)
        self._envs, self._space = envs, envs.single_observation_space
        self._actor, self._policy = actor, policy
        self._on_step, self._go_on = on_step, go_on
        self._config, self._length = config, config.share.rollout_length
        self._epsilon, self._return_statistics = epsilon, return_statistics
        self._stopwatch = stopwatch or Stopwatch()
        self._rng = np.random.default_rng([seed, 1])  # the first environment uses `seed` itself
        self._environment_errors = EnvironmentErrors()
        self._autoreset = Autoreset(envs)
        seeding.seed_global_generators(seed)
        with self._environment_errors:
            observations, info = envs.reset(seed=seed)
        self._shape = np.shape(observations)
        self._observations = channels_last(observations, self._space)
        self._state = actor.initial_state(envs.num_envs)
        self._lives = np.zeros(envs.num_envs, int)
        self._lives = self._lives_left(info)
        self._discounted = np.zeros(envs.num_envs)  # returns so far, for `normalize_rewards`

        def rows(dtype: Any, shape: Iterable[int] = ()) -> np.ndarray:
            return np.empty((self._length, envs.num_envs, *shape), dtype)

        space = channels_last_space(self._space)
        self._rows = {  # of the current rollout
            "observations": rows(space.dtype, space.shape),
            "actions": rows(policy.action_dtype, policy.action_shape),
            "policy_parameters": rows(np.float32, [policy.num_parameters]),
            **{name: rows(np.float32) for name in ("values", "mask", "epsilon")},
            "starts": rows(bool),
        }
        self._raw_rewards = rows(np.float32)
        self._ends = rows(bool)  # true at the last step of a return
        self._truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._episodes: list[Episode] = []
        self._info: dict[str, list[float]] = {}

    def rollouts(self) -> Iterator[Rollout]:
        learning, statistics = self._config.learning, np.zeros(0)
        while True:
            # Reset non-finite states: they would make every later rollout non-finite.
            self._state[~np.isfinite(self._state).all(axis=1)] = 0.0
            state, epsilon = self._state, self._epsilon()
            self._rows["epsilon"][:] = epsilon
            self._truncations, self._episodes, self._info = [], [], {}
            for t in range(self._length):
                self._step(t, epsilon)
                if not self._go_on():
                    return
            # Rewards of all steps at once: with one environment, NumPy calls per step are slow.
            rewards = self._raw_rewards * np.float32(learning.reward_scale)
            if self._config.env.normalize_rewards:
                totals = discounted_so_far(
                    self._raw_rewards, self._ends, self._discounted, learning.gamma
                )
                is_over = self._ends[-1] | ~np.isfinite(totals[-1])  # NaN would stay forever
                self._discounted = np.where(is_over, 0.0, totals[-1])
                seen = totals[(self._rows["mask"] > 0) & np.isfinite(totals)]
                statistics = np.array([seen.size, seen.sum(), np.square(seen).sum()])
                rewards /= np.float32(return_deviation(self._return_statistics() + statistics))
            if learning.reward_clip > 0:
                np.clip(rewards, -learning.reward_clip, learning.reward_clip, rewards)
            with np.errstate(invalid="ignore", over="ignore"):
                for t, cut, values in self._truncations:  # summed in float64, rounded once
                    rewards[t, cut] += np.float64(learning.gamma) * values[cut]
            discounts = np.where(self._ends, np.float32(0.0), np.float32(learning.gamma))
            bootstrap = self._actor.value(self._observations, self._state, self._autoreset.starts)
            self._stopwatch.lap("act")
            yield Rollout(
                **self._rows,
                rewards=rewards,
                discounts=discounts,
                bootstrap_value=bootstrap,
                next_observations=self._observations,
                next_starts=self._autoreset.starts,
                state=state,
                episodes=self._episodes,
                info=self._info,
                return_statistics=statistics,
            )

    def _step(self, t: int, epsilon: float) -> None:
        reset, rows = self._autoreset, self._rows
        action = self._actor.act(self._observations, self._state, reset.starts)
        actions = action.actions
        if epsilon > 0:  # the probability of a uniformly random action instead
            chosen = self._rng.random(len(actions)) < epsilon
            random = self._policy.random_actions(self._rng, action.policy_parameters)
            actions = np.where(chosen.reshape(-1, *[1] * (actions.ndim - 1)), random, actions)
        rows["observations"][t] = self._observations
        rows["actions"][t], rows["values"][t] = actions, action.values
        rows["policy_parameters"][t] = action.policy_parameters
        rows["starts"][t], rows["mask"][t] = reset.starts, ~reset.dead
        if self._on_step:
            before, taken = (self._observations, self._state), action._replace(actions=actions)
            scores = reset.returns, reset.lengths
            self._on_step(PlayedStep(*before, reset.starts, taken, *scores))
        self._stopwatch.lap("act")
        with self._environment_errors:
            observations, rewards, *ends, info = self._envs.step(self._policy.to_env(actions))
            terminated, truncated = (np.asarray(end, bool) for end in ends)
            if (shape := np.shape(observations)) != self._shape:  # in a user's own VectorEnv
                raise ValueError(f"observations of shape {shape}: give {self._shape} as `reset`")
        self._stopwatch.lap("env")
        done = terminated | truncated
        ended = reset.count(*wrappers.raw(info, rewards, done))
        self._episodes += [game for _, game in ended if np.isfinite(game.episode_return)]
        for name in self._config.run.info_metrics:
            self._info.setdefault(name, []).extend(info_numbers(info, name, done, ~reset.dead))
        self._raw_rewards[t] = rewards
        lives = self._lives_left(info)  # a lost life ends the episode, for learning only
        self._ends[t] = done | reset.dead | (lives < self._lives)
        if np.count_nonzero(truncated) and (cut := truncated & ~terminated).any():
            final = self._final(observations, info, cut)
            values = self._actor.value(final, action.state, np.zeros_like(cut))
            self._truncations.append((t, cut, values))
        self._lives = lives
        with self._environment_errors:
            observations, info = reset.after(observations, info, done)
        self._lives = self._lives_left(info)  # a game that was reset has new lives
        self._observations = channels_last(observations, self._space)
        self._state = action.state

    def _final(self, observations: Any, info: dict[str, Any], cut: np.ndarray) -> np.ndarray:
        """The observations after a step; for truncated games the final ones."""
        final = np.array(observations)
        if self._autoreset.mode == AutoresetMode.SAME_STEP:  # else no game is reset yet
            with self._environment_errors:
                if "final_obs" not in info:
                    raise ValueError("info lacks final_obs: give the last observations there")
                for i in np.flatnonzero(cut):
                    final[i] = info["final_obs"][i]
        return final

    def _lives_left(self, info: dict[str, Any]) -> np.ndarray:
        """Lives by game, `[B]`; unchanged where a game reports none."""
        if not self._config.env.episodic_life:
            return self._lives
        with self._environment_errors:
            lives = np.where(info.get("_lives", True), info.get("lives", self._lives), self._lives)
            return lives.astype(int)


class FixedStepReturns:
    """Returns of exactly N steps, also beyond a rollout's end; for networks without a memory.

    Samples that N steps have not followed yet are kept for the next rollouts.
    """

    def __init__(self, learning: LearningConfig) -> None:
        self._learning = learning
        self._kept: dict[str, np.ndarray] = {}

    def complete(self, rollout: Rollout) -> tuple[Rollout, np.ndarray, np.ndarray]:
        """Remove and return the samples that are complete now, with advantages and returns.

        If there are fewer than `return_min_samples`, all wait for the next rollout. A sample that
        waits keeps the value that was predicted when it was played.
        """
        learning, steps = self._learning, self._learning.return_steps
        assert steps is not None
        rows = {name: getattr(rollout, name) for name in _ROWS}
        if self._kept:
            rows = {name: np.concatenate([self._kept[name], new]) for name, new in rows.items()}
        done = max(0, len(rows["mask"]) - steps + 1)
        if np.count_nonzero(rows["mask"][:done]) < max(1, learning.return_min_samples):
            done = 0
        # Copies, because the next rollout reuses the arrays.
        self._kept = {name: np.array(values[done:]) for name, values in rows.items()}
        played = rows["rewards"], rows["values"], rollout.bootstrap_value, rows["discounts"]
        advantages, returns = n_step(*played, learning.gae_lambda, steps)
        cut = {name: values[:done] for name, values in rows.items()}
        return rollout._replace(**cut), advantages[:done], returns[:done]
