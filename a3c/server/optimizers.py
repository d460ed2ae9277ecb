"""Optimizer steps on the ps, with statistics that all workers share.

Every worker builds the same graph with the same names, so all update one set of statistics, each on
the ps of its variable: the "shared" of Mnih et al. 2016, arXiv:1602.01783.

Variables must be resource variables: TensorFlow then updates a variable and its slots atomically
even with `use_locking=False`, so no step is lost. Steps of different variables are not ordered.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from a3c.config import LearningConfig
from a3c.server import sessions
from a3c.server.layout import COUNTERS


def make_variable(name: str, shape: Any, dtype: Any, start: Any = None) -> Any:
    """A variable, by default of zeros, on the scope's device; processes share them by name."""
    start = start or tf.compat.v1.zeros_initializer()
    return tf.compat.v1.get_variable(name, shape, dtype, start, trainable=False, use_resource=True)


def step(
    config: LearningConfig, learning_rate: Any, gradient: Any, variable: Any, slots: str = ""
) -> Any:
    """The operation that makes one step in `variable`, all of it on the variable's device.

    `slots` is a suffix of the names of its statistics: an optimizer of the value loss has another.
    """
    # With statistics per worker, `own_step` has made the step; the ps only subtracts it.
    kind = config.optimizer if config.optimizer_statistics == "shared" else "sgd"

    def slot(name: str, start: float) -> Any:
        initial = tf.compat.v1.constant_initializer(start)
        with tf.init_scope(), tf.device(variable.device):  # the step may be built in a condition
            return make_variable(f"{variable.op.name}/{name}", variable.shape, tf.float32, initial)

    with tf.device(variable.device):
        if kind == "rmsprop":
            # TensorFlow's `RMSPropOptimizer` always begins with a mean square of 1. Mnih et al.
            # 2016, section 4, "Optimization": g ← αg + (1 - α)Δθ², θ ← θ - ηΔθ/√(g + ε). The fused
            # operation needs the slot for momentum even where there is none.
            return tf.raw_ops.ResourceApplyRMSProp(
                var=variable.handle,
                ms=slot(f"RMSProp{slots}", config.rmsprop_initial_mean_square).handle,
                mom=slot(f"RMSProp{slots}_1", 0.0).handle,
                lr=learning_rate,
                rho=config.rmsprop_alpha,
                momentum=config.rmsprop_momentum,
                epsilon=config.rmsprop_epsilon,
                grad=gradient,
            )
        # Without this scope the counters' names would depend on the calling place in the graph.
        with tf.compat.v1.variable_scope(f"{COUNTERS}/{variable.op.name}"):
            optimizer: Any = tf.compat.v1.train.GradientDescentOptimizer(learning_rate)
            if kind == "adam":
                optimizer = tf.compat.v1.train.AdamOptimizer(
                    learning_rate,
                    beta1=config.adam_beta1,
                    beta2=config.adam_beta2,
                    epsilon=config.adam_epsilon,
                    name=f"Adam{slots}",
                    use_own_namescope_for_non_slot_vars=True,
                )
        return optimizer.apply_gradients([(gradient, variable)])


def own_step(config: LearningConfig, size: int) -> Callable[..., list[np.ndarray]]:
    """A worker's own optimizer: "RMSProp" instead of "Shared RMSProp" in Mnih et al. 2016.

    The returned function takes a gradient `[P]` and a learning rate, makes a step from a vector of
    zeros, and returns what to subtract from the parameters. The worker pushes this as a gradient
    for plain descent at a rate of 1. The statistics are lost when the process ends.
    """
    config = dataclasses.replace(config, optimizer_statistics="shared")
    with tf.Graph().as_default() as graph:
        gradient = tf.compat.v1.placeholder(tf.float32, [size])
        learning_rate = tf.compat.v1.placeholder(tf.float32, [])
        change = make_variable("change", [size], tf.float32)
        with tf.control_dependencies([change.assign(tf.zeros([size]), read_value=False)]):
            made = step(config, learning_rate, gradient, change)
        with tf.control_dependencies([made]):
            difference = -change.read_value()
        initialize = tf.compat.v1.global_variables_initializer()
    on_cpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, intra_op_parallelism_threads=1)
    session = tf.compat.v1.Session(graph=graph, config=on_cpu)
    session.run(initialize)
    return sessions.prepare(session, [gradient, learning_rate], [difference])


def is_value_only(name: str) -> bool:
    """Whether only the value function uses the variable: a part of its path starts with `value`."""
    return any(part.startswith("value") for part in name.split("/"))


def clip_factor(norm: Any, max_norm: float) -> Any:
    """The factor that clips a gradient of this norm to `max_norm` (0: never).

    Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1. The
    factor is 1 where the norm is not finite, so that the caller can detect it; that includes a
    finite gradient whose squared norm overflows.
    """
    if max_norm == 0.0:
        return tf.ones_like(norm)
    is_long = tf.logical_and(norm > max_norm, tf.math.is_finite(norm))
    return tf.where(is_long, max_norm / norm, tf.ones_like(norm))
