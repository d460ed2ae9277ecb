"""What travels: headers bit by bit, gradients in either precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from a3c import wire
from a3c.wire import WireDtype

DTYPES: list[WireDtype] = ["float32", "float16"]
NUMBERS = st.lists(st.floats(width=64), min_size=1, max_size=20)


@given(NUMBERS, st.sampled_from(DTYPES))
def test_a_header_comes_through_bit_by_bit(numbers: list[float], dtype: WireDtype) -> None:
    header, flat = np.array(numbers), np.arange(5, dtype=dtype)
    whole = wire.put_header(header, flat)
    assert len(whole) == wire.header_size(len(header), dtype) + len(flat)
    again, rest = wire.take_header(whole, len(header), np.float64)
    assert again.tobytes() == header.tobytes()
    np.testing.assert_array_equal(rest, flat)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_and_arrays_take_each_others_headers(dtype: WireDtype) -> None:
    header = np.array([2**40 + 1, -3, 0], np.int64)
    flat = np.arange(7, dtype=dtype)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = session.run(wire.put_header_tensor(tf.constant(header), tf.constant(flat)))
        whole = tf.constant(wire.put_header(header, flat))
        taken, rest = session.run(wire.take_header_tensor(whole, 3, tf.int64))
    np.testing.assert_array_equal(made, wire.put_header(header, flat))
    np.testing.assert_array_equal(taken, header)
    np.testing.assert_array_equal(rest, flat)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 8, 9])
def test_what_follows_a_header_is_aligned_as_tensorflow_likes_it(
    dtype: WireDtype, length: int
) -> None:
    assert wire.header_size(length, dtype) * np.dtype(dtype).itemsize % 64 == 0


@pytest.mark.parametrize("norm", [1e-12, 1e-3, 1.0, 1e9])
def test_half_precision_keeps_three_digits_of_gradients_of_any_size(norm: float) -> None:
    gradient = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    gradient *= norm / np.linalg.norm(gradient)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        packed, unit = wire.pack(tf.constant(gradient), tf.constant(norm, tf.float32), "float16")
        assert packed.dtype == tf.float16
        again = session.run(wire.unpack(packed, unit, "float16"))
    assert np.linalg.norm(again - gradient) < 1e-3 * norm


def test_a_gradient_of_zero_stays_zero() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        packed, unit = wire.pack(tf.zeros([4]), tf.constant(0.0), "float16")
        again = session.run(wire.unpack(packed, unit, "float16"))
    np.testing.assert_array_equal(again, np.zeros(4))
