"""What travels: gradients in either precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from a3c.server import precision


@pytest.mark.parametrize("norm", [1e-12, 1e-3, 1.0, 1e9])
def test_half_precision_keeps_three_digits_of_gradients_of_any_size(norm: float) -> None:
    gradient = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    gradient *= norm / np.linalg.norm(gradient)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        length = tf.constant(norm, tf.float32)
        packed, unit = precision.pack(tf.constant(gradient), length, "float16")
        assert packed.dtype == tf.float16
        again = session.run(precision.unpack(packed, unit, "float16"))
    assert np.linalg.norm(again - gradient) < 1e-3 * norm


def test_a_gradient_of_zero_stays_zero() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        packed, unit = precision.pack(tf.zeros([4]), tf.constant(0.0), "float16")
        again = session.run(precision.unpack(packed, unit, "float16"))
    np.testing.assert_array_equal(again, np.zeros(4))
