"""Small TensorFlow graphs for tests, and numbers to compare with theirs."""

from collections.abc import Callable
from typing import Any

import numpy as np
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


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def slope(loss: Callable[[], float], array: np.ndarray, place: Any, width: float = 1e-5) -> float:
    """The derivative of a loss by one number of an array, by a central difference."""
    start, losses = array[place], []
    for sign in (1, -1):
        array[place] = start + sign * width
        losses.append(loss())
    array[place] = start
    return (losses[0] - losses[1]) / (2 * width)
