"""Policies: distributions over actions, given a network's policy parameters `[..., P]`."""

import abc
import math
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Discrete, Space

from a3c.config import NetworkConfig
from a3c.env.spaces import as_actions, check_bounds, choice_sizes
from a3c.errors import UserError
from a3c.net import layers

# Deviations from 4.5e-5 to 148; beyond that float32 can't represent densities well enough.
LOG_DEVIATION_RANGE = (-10.0, 5.0)

# The logit of an action that a mask forbids: its probability is exactly 0.
FORBIDDEN = -1e8

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Policy(abc.ABC):
    """A distribution over actions, with its own output layer.

    Rollouts store actions in the policy's own form; only `to_env` knows the environment's.
    """

    num_parameters: int  # P, the length of the last axis of all `parameters`
    action_dtype: np.dtype  # of stored actions
    action_shape: tuple[int, ...]

    @abc.abstractmethod
    def head(self, features: Any) -> Any:
        """Add the policy's output layer: features `[..., F]` to parameters `[..., P]`."""

    @abc.abstractmethod
    def sample(self, parameters: Any) -> Any:
        """Draw one action for each row of parameters, `[..., *action_shape]`."""

    @abc.abstractmethod
    def mode(self, parameters: Any) -> Any:
        """The most probable action, `[..., *action_shape]`."""

    @abc.abstractmethod
    def log_probability(self, parameters: Any, actions: Any) -> Any:
        """The log of the probability or density of stored actions, `[...]`."""

    @abc.abstractmethod
    def entropy(self, parameters: Any) -> Any:
        """The entropy in nats, `[...]`."""

    @abc.abstractmethod
    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Convert stored actions to the environment's; valid even if a network diverged to NaN."""

    @abc.abstractmethod
    def random_actions(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        """Draw uniformly random actions in stored form for parameters `[B, P]`."""

    @abc.abstractmethod
    def random_log_probability(self, parameters: Any, actions: Any) -> Any:
        """The log-probability or log-density of `actions` under `random_actions`, `[...]`."""

    def played_log_probability(self, parameters: Any, actions: Any, epsilon: Any) -> Any:
        """The log-probability of `actions`, each random with probability `epsilon`; `[...]`."""
        by_policy = self.log_probability(parameters, actions) + tf.math.log1p(-epsilon)
        at_random = self.random_log_probability(parameters, actions) + tf.math.log(epsilon)
        return tf.reduce_logsumexp(tf.stack([by_policy, at_random]), axis=0)  # log(0) is -inf

    @abc.abstractmethod
    def describe(self) -> str:
        """The policy in a few words."""

    def shown(self, parameters: np.ndarray) -> str:
        """One row of parameters `[P]` as text for the log."""
        return " ".join(f"{number:.3f}" for number in parameters)


def for_space(space: Space[Any], config: NetworkConfig) -> Policy:
    """The policy for an action space; raises UserError for a space without a policy."""
    if choice_sizes(space):
        return Categorical(space, config)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space, config)
    raise UserError(
        f"action space {space} has no policy: wrap the environment to take Discrete, "
        "MultiDiscrete, MultiBinary or floating-point Box actions"
    )


class Categorical(Policy):
    """Choices by index, with logits as parameters.

    A Discrete space has one choice; the entries of a MultiDiscrete or MultiBinary space are
    independent choices, with log-probabilities and entropies summed.
    """

    def __init__(self, space: Space[Any], config: NetworkConfig) -> None:
        self._space, self._config = space, config
        self._sizes = choice_sizes(space)
        self._counts: Any = self._sizes[0] if isinstance(space, Discrete) else np.array(self._sizes)
        self.num_parameters = sum(self._sizes)
        self.action_dtype = np.dtype(np.int64)
        self.action_shape = np.shape(self._counts)

    def head(self, features: Any) -> Any:
        """A dense layer `policy` for the concatenated logits of all choices."""
        start = self._config.initialization
        gain, units = layers.POLICY_GAIN, self.num_parameters
        return layers.dense(features, units, "policy", gain=gain, initialization=start)

    def sample(self, parameters: Any) -> Any:
        """Draw each choice by the Gumbel-max trick: the argmax of logits plus noise.

        It is a valid index even for NaN logits, unlike that of `tf.random.categorical`. The noise
        is float64, because its tail must be long enough for actions of tiny probability.
        """
        smallest = np.finfo(np.float64).tiny
        uniform = tf.random.uniform(tf.shape(parameters), smallest, 1.0, tf.float64)
        return self.mode(tf.cast(parameters, tf.float64) - tf.math.log(-tf.math.log(uniform)))

    def mode(self, parameters: Any) -> Any:
        """The index of each choice's highest logit; of equal logits the first."""
        choices = [tf.argmax(logits, axis=-1) for logits in self._split(parameters)]
        return tf.stack(choices, axis=-1) if self.action_shape else choices[0]

    def log_probability(self, parameters: Any, actions: Any) -> Any:
        choices = tf.unstack(actions, axis=-1) if self.action_shape else [actions]
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        parts = zip(choices, self._split(parameters), strict=True)
        return tf.add_n([-cross_entropy(labels=labels, logits=logits) for labels, logits in parts])

    def entropy(self, parameters: Any) -> Any:
        logs = [tf.nn.log_softmax(logits) for logits in self._split(parameters)]
        return tf.add_n([-tf.reduce_sum(tf.exp(log) * log, axis=-1) for log in logs])

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        valid = np.minimum(np.maximum(actions, 0), self._counts - 1)  # a third of np.clip's time
        return as_actions(self._space, valid)

    def random_actions(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        """Draw among the actions that no mask forbids."""
        drawn = np.where(parameters == FORBIDDEN, -1.0, rng.random(parameters.shape))
        choices = np.split(drawn, np.cumsum(self._sizes)[:-1], axis=-1)
        return np.stack([c.argmax(-1) for c in choices], -1).reshape(-1, *self.action_shape)

    def random_log_probability(self, parameters: Any, actions: Any) -> Any:  # noqa: ARG002
        """Minus the log of the number of allowed combinations; it is the same for all of them."""
        allowed = tf.cast(tf.not_equal(parameters, FORBIDDEN), tf.float32)
        counts = [tf.reduce_sum(choice, axis=-1) for choice in self._split(allowed)]
        return -tf.add_n([tf.math.log(count) for count in counts])

    def probabilities(self, parameters: np.ndarray) -> list[np.ndarray]:
        """The probabilities of each choice's actions, `[..., n]`, in float64."""
        parts = np.split(parameters.astype(np.float64), np.cumsum(self._sizes)[:-1], axis=-1)
        weights = [np.exp(logits - logits.max(axis=-1, keepdims=True)) for logits in parts]
        return [each / each.sum(axis=-1, keepdims=True) for each in weights]

    def shown(self, parameters: np.ndarray) -> str:
        return ", ".join(map(super().shown, self.probabilities(parameters)))

    def describe(self) -> str:
        kind = "multi-categorical" if self.action_shape else "categorical"
        return f"{kind} over {'x'.join(map(str, self._sizes))} actions"

    def _split(self, parameters: Any) -> list[Any]:
        return tf.split(parameters, self._sizes, axis=-1) if self.action_shape else [parameters]


class Gaussian(Policy):
    """A diagonal Gaussian for Box actions; parameters are means, then log-deviations.

    With `clip`, actions are unbounded, and `to_env` clips them to the bounds; log-probabilities are
    those of the unclipped actions. With `squash`, `to_env` gives the bounds' centre plus half their
    distance times tanh(u). Rollouts store u, so that log-probabilities of the squashed action stay
    exact even where tanh saturates.
    """

    def __init__(self, space: Box, config: NetworkConfig) -> None:
        self._space, self._config = space, config
        self._squash = config.action_bounds == "squash"
        check_bounds(space, config.action_bounds)
        low, high = (edge.ravel().astype(np.float64) for edge in (space.low, space.high))
        self._is_bounded = np.isfinite(low) & np.isfinite(high)
        dtype: Any = space.dtype
        limits = np.finfo(dtype)  # in place of infinite bounds
        self._low, self._high = np.maximum(low, limits.min), np.minimum(high, limits.max)
        # Of uniformly random actions; dimensions that lack a bound have a standard normal.
        self._random_range = np.where(self._is_bounded, (low, high), [[0], [1]])
        # Finite even where the bounds are equal.
        half_range = np.maximum(0.5 * self._high - 0.5 * self._low, 1e-8)
        self._log_half_range = np.log(half_range).astype(np.float32)
        self._size = len(low)
        self.num_parameters = 2 * self._size
        self.action_dtype = np.dtype(np.float32)
        self.action_shape = (self._size,)

    def head(self, features: Any) -> Any:
        """A dense layer `policy` for the means; log-deviations within `LOG_DEVIATION_RANGE`.

        They are a dense layer, `policy/deviation`, or one variable, `policy/log_deviation`.
        """
        config, bias = self._config, self._config.initial_log_deviation
        start: Any = {"gain": layers.POLICY_GAIN, "initialization": config.initialization}
        means = layers.dense(features, self._size, "policy", **start)
        with tf.compat.v1.variable_scope("policy"):
            if config.gaussian_deviation == "state-dependent":
                start["initial_bias"] = bias
                deviations = layers.dense(features, self._size, "deviation", **start)
            else:
                initial = tf.compat.v1.constant_initializer(bias)
                deviations = tf.identity(layers.variable("log_deviation", [self._size], initial))
                layers.record("log_deviation", "variable", (self._size,), [], deviations)
        within = _keep_within(deviations, *LOG_DEVIATION_RANGE)
        return tf.concat([means, within + tf.zeros_like(means)], axis=-1)

    def sample(self, parameters: Any) -> Any:
        """Draw an action; with `squash`, its value before tanh."""
        mean, log_deviation = tf.split(parameters, 2, axis=-1)
        return mean + tf.exp(log_deviation) * tf.random.normal(tf.shape(mean))

    def mode(self, parameters: Any) -> Any:
        """The mean; with `squash`, the squashed mean is the action's median."""
        return tf.split(parameters, 2, axis=-1)[0]

    def log_probability(self, parameters: Any, actions: Any) -> Any:
        """The log-density of the unclipped action, or of the squashed one."""
        mean, log_deviation = tf.split(parameters, 2, axis=-1)
        z = (actions - mean) * tf.exp(-log_deviation)
        log_density = -0.5 * z**2 - log_deviation - _HALF_LOG_TAU
        if self._squash:
            log_density -= _log_tanh_slope(actions) + self._log_half_range
        return tf.reduce_sum(log_density, axis=-1)

    def entropy(self, parameters: Any) -> Any:
        """Clipped: 0.5·log(2πe) + log σ, exact for the unclipped action.

        Squashed: that plus E[log |da/du|] by Gauss-Hermite quadrature with 32 nodes, with an error
        of at most 1e-4 nats per dimension for σ ≤ 1, and of 3% of σ above. It is bounded by the
        uniform distribution's entropy, so an entropy bonus can't increase σ without limit.
        """
        mean, log_deviation = tf.split(parameters, 2, axis=-1)
        entropy = 0.5 + _HALF_LOG_TAU + log_deviation
        if self._squash:
            nodes, weights = np.polynomial.hermite_e.hermegauss(32)
            z = tf.constant(nodes, tf.float32)
            points = mean[..., None] + tf.exp(log_deviation)[..., None] * z  # [..., D, nodes]
            slopes = _log_tanh_slope(points) * (weights / weights.sum()).astype(np.float32)
            entropy += tf.reduce_sum(slopes, axis=-1) + self._log_half_range
        return tf.reduce_sum(entropy, axis=-1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions within the bounds, in the space's shape and dtype; NaN counts as 0."""
        finite, low, high = np.nan_to_num(actions.astype(np.float64)), self._low, self._high
        if self._squash:
            finite = 0.5 * (low + high) + (0.5 * high - 0.5 * low) * np.tanh(finite)
        within = np.clip(finite, low, high).astype(self._space.dtype)
        return within.reshape(*actions.shape[:-1], *self._space.shape)

    def random_actions(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        """Uniform within the bounds; standard normal in dimensions that lack a bound."""
        size = (len(parameters), self._size)
        if self._squash:
            return np.arctanh(rng.uniform(-1.0, 1.0, size) * (1.0 - 1e-6)).astype(np.float32)
        low, high = self._random_range
        uniform = low + (high - low) * rng.uniform(size=size)
        return np.where(self._is_bounded, uniform, rng.standard_normal(size)).astype(np.float32)

    def random_log_probability(self, parameters: Any, actions: Any) -> Any:  # noqa: ARG002
        """Uniform within the bounds, -inf outside; standard normal where a bound is missing."""
        if self._squash:
            log_range = math.log(2.0) + self._log_half_range  # squashed actions are within bounds
            return tf.fill(tf.shape(actions)[:-1], -float(log_range.sum()))
        low, high = self._random_range
        is_within = (actions >= low.astype(np.float32)) & (actions <= high.astype(np.float32))
        log_range = np.log(np.maximum(high - low, 1e-8)).astype(np.float32)
        log_uniform = tf.where(is_within, -log_range, -np.inf)
        log_normal = -0.5 * actions**2 - _HALF_LOG_TAU
        return tf.reduce_sum(tf.where(self._is_bounded, log_uniform, log_normal), axis=-1)

    def describe(self) -> str:
        kind = "squashed" if self._squash else "clipped"
        numbers = "one number" if self._size == 1 else f"{self._size} numbers"
        return f"Gaussian over {numbers}, {kind}, {self._config.gaussian_deviation} deviation"


def _log_tanh_slope(u: Any) -> Any:
    """Log of 1 - tanh(u)², to full precision for any u."""
    size = tf.abs(u)
    return 2.0 * (math.log(2.0) - size - tf.nn.softplus(-2.0 * size))


def _keep_within(values: Any, low: float, high: float) -> Any:
    """Clip, but let gradients move a value back into the range, unlike `tf.clip_by_value`."""

    @tf.custom_gradient
    def clip(values: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            outwards = ((values <= low) & (upstream > 0)) | ((values >= high) & (upstream < 0))
            return tf.where(outwards, 0.0, upstream)

        return tf.clip_by_value(values, low, high), gradient

    return clip(values)
