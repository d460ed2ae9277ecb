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
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from a3c.configuring.learning import LearningConfig

VALUE_SUFFIX = "Value"  # of the name of the optimizer for variables that only the value uses


class SharedRMSProp(tf.compat.v1.train.RMSPropOptimizer):
    """RMSProp without momentum whose mean squares start where they are told to.

    Mnih et al. 2016, section 4, "Optimization": g ← αg + (1 - α)Δθ², θ ← θ - ηΔθ/√(g + ε).
    TensorFlow's own starts g at 1; its fused step insists on a momentum slot, of no effect here.
    """

    def __init__(self, learning_rate: Any, config: LearningConfig, name: str) -> None:
        """`learning_rate` is a scalar tensor; the rest comes from the `rmsprop_` settings."""
        super().__init__(
            learning_rate,
            decay=config.rmsprop_alpha,
            momentum=0.0,
            epsilon=config.rmsprop_epsilon,
            name=name,
        )
        self._initial_mean_square = config.rmsprop_initial_mean_square

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        initializer = tf.compat.v1.constant_initializer(self._initial_mean_square)
        for variable in var_list:
            self._get_or_make_slot_with_initializer(
                variable, initializer, variable.shape, variable.dtype.base_dtype, "rms", self._name
            )
            self._zeros_slot(variable, "momentum", self._name)


@dataclass(frozen=True)
class Optimizer:
    """Two TensorFlow optimizers of a kind, so that the critic can learn at a rate of its own."""

    main: Any
    value_only: Any  # steps the variables that only the value function uses

    def apply(
        self, together: Sequence[tuple[Any, Any]], value_only: Sequence[tuple[Any, Any]] = ()
    ) -> Any:
        """The operation that makes one step in each variable, on that variable's device.

        Both are pairs of a gradient and a variable.
        """
        groups = ((self.main, together), (self.value_only, value_only))
        return tf.group(*(optimizer.apply_gradients(group) for optimizer, group in groups if group))

    def variables(self) -> list[Any]:
        """Every slot and counter that `apply` has made in the current default graph."""
        return [*self.main.variables(), *self.value_only.variables()]


def make(config: LearningConfig, learning_rate: Any) -> Optimizer:
    """The configured optimizer at `learning_rate`, a scalar or a scalar tensor that may be fed.

    Variables that only the value function uses step at `learning_rate` times
    `critic_learning_rate_scale`. The optimizer's own variables are the same at every scale, so a
    run may be resumed with another one.
    """
    learning_rate = tf.convert_to_tensor(learning_rate)
    # Anywhere else, a rate that is on the ps would travel to a worker and back in each update.
    with tf.compat.v1.device(learning_rate.device):
        critic_learning_rate = learning_rate * config.critic_learning_rate_scale
    return Optimizer(
        main=_make_one(config, learning_rate, ""),
        value_only=_make_one(config, critic_learning_rate, VALUE_SUFFIX),
    )


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
    is_long = tf.logical_and(norm > max_norm, tf.math.is_finite(norm))
    return gradient * tf.where(is_long, max_norm / norm, tf.ones_like(norm)), norm


def _make_one(config: LearningConfig, learning_rate: Any, suffix: str) -> Any:
    """One TensorFlow optimizer whose variables are called after it and `suffix`."""
    if config.optimizer == "adam":
        return tf.compat.v1.train.AdamOptimizer(
            learning_rate,
            beta1=config.adam_beta1,
            beta2=config.adam_beta2,
            epsilon=config.adam_epsilon,
            use_locking=False,
            name=f"Adam{suffix}",
            # Or the beta powers' names would depend on where in the graph `apply` is called.
            use_own_namescope_for_non_slot_vars=True,
        )
    if config.optimizer == "rmsprop":
        return SharedRMSProp(learning_rate, config, f"RMSProp{suffix}")
    return tf.compat.v1.train.GradientDescentOptimizer(learning_rate, name=f"SGD{suffix}")
