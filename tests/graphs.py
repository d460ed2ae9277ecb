"""Small TensorFlow graphs for tests."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def run(build: Callable[[], Any], seed: int = 7) -> Any:
    """The values of what `build` adds to a new graph and returns, after initialisation."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(seed)
        fetches = build()
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(fetches)


def variables() -> dict[str, Any]:
    return {variable.op.name: variable for variable in tf.compat.v1.trainable_variables()}
