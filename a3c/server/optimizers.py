"""The step that a gradient makes in the variables on the ps, with statistics that workers share.

Slots are variables beside the one they belong to, on its ps. Every worker builds the same graph
over the same names, so all of them update one set of statistics: the "shared" of Mnih et al. 2016,
"Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783.

Variables must be resource variables (`use_resource=True`): TensorFlow then makes a step of one
variable and its slots as a whole even with `use_locking=False`, so no worker's step is lost, while
nothing orders the steps of different variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from a3c.config.learning import LearningConfig

COUNTERS = "counters"  # what the names of those that belong to a whole variable begin with


class SharedRMSProp(tf.compat.v1.train.RMSPropOptimizer):
    """RMSProp without momentum whose mean squares start where they are told to.

    Mnih et al. 2016, section 4, "Optimization": g ← αg + (1 - α)Δθ², θ ← θ - ηΔθ/√(g + ε).
    TensorFlow's own starts g at 1; its fused step insists on a momentum slot, of no effect here.
    """

    def __init__(self, learning_rate: Any, config: LearningConfig) -> None:
        """`learning_rate` is a scalar or a tensor; the rest comes from the `rmsprop_` settings."""
        super().__init__(
            learning_rate,
            decay=config.rmsprop_alpha,
            momentum=0.0,
            epsilon=config.rmsprop_epsilon,
        )
        self._initial_mean_square = config.rmsprop_initial_mean_square

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        initializer = tf.compat.v1.constant_initializer(self._initial_mean_square)
        for variable in var_list:
            self._get_or_make_slot_with_initializer(
                variable, initializer, variable.shape, variable.dtype.base_dtype, "rms", self._name
            )
            self._zeros_slot(variable, "momentum", self._name)


def step(config: LearningConfig, learning_rate: Any, gradient: Any, variable: Any) -> Any:
    """The operation that makes one step in `variable` at a rate that is a scalar or a tensor.

    It is wholly on that variable's device, with counters of its own: on a cluster, whatever lies
    elsewhere would travel in each step.
    """
    with tf.device(variable.device):
        # Or the names of the counters would depend on where in the graph this is called.
        with tf.compat.v1.variable_scope(f"{COUNTERS}/{variable.op.name}"):
            optimizer = _make(config, learning_rate)
        return optimizer.apply_gradients([(gradient, variable)])


def is_value_only(name: str) -> bool:
    """Whether only the value function uses the variable: a part of its path starts with `value`."""
    return any(part.startswith("value") for part in name.split("/"))


def clip_flat(gradient: Any, max_norm: float) -> tuple[Any, Any]:
    """A flat gradient scaled down to norm `max_norm` where it is longer, and its norm before that.

    `max_norm` 0 never clips (Pascanu et al. 2013, "On the difficulty of training recurrent neural
    networks", algorithm 1, over all parameters at once). A gradient whose norm is not finite comes
    back as it is, so that the norm tells and nothing is hidden; that includes a finite one so long
    that the sum of its squares overflows.
    """
    norm = tf.sqrt(tf.reduce_sum(tf.square(gradient)))  # []
    if max_norm == 0.0:
        return gradient, norm
    return gradient * clipped(norm, max_norm), norm


def clipped(norm: Any, max_norm: float) -> Any:
    """What to multiply a gradient of that norm by; 1 where the norm is not finite."""
    if max_norm == 0.0:
        return tf.ones_like(norm)
    is_long = tf.logical_and(norm > max_norm, tf.math.is_finite(norm))
    return tf.where(is_long, max_norm / norm, tf.ones_like(norm))


def _make(config: LearningConfig, learning_rate: Any) -> Any:
    """TensorFlow's optimizer of the configured kind."""
    if config.optimizer == "adam":
        return tf.compat.v1.train.AdamOptimizer(
            learning_rate,
            beta1=config.adam_beta1,
            beta2=config.adam_beta2,
            epsilon=config.adam_epsilon,
            use_locking=False,
            use_own_namescope_for_non_slot_vars=True,
        )
    if config.optimizer == "rmsprop":
        return SharedRMSProp(learning_rate, config)
    return tf.compat.v1.train.GradientDescentOptimizer(learning_rate)
