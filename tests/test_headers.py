"""Headers come through bit by bit, in front of a vector or apart from it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from a3c import headers
from a3c.wire import WireDtype

DTYPES: list[WireDtype] = ["float32", "float16"]
NUMBERS = st.lists(st.floats(width=64), min_size=1, max_size=20)


@given(NUMBERS, st.sampled_from(DTYPES))
def test_a_header_comes_through_bit_by_bit(numbers: list[float], dtype: WireDtype) -> None:
    header, flat = np.array(numbers), np.arange(5, dtype=dtype)
    whole = headers.put_header(header, flat)
    assert len(whole) == headers.header_size(len(header), dtype) + len(flat)
    again, rest = headers.take_header(whole, len(header), np.float64)
    assert again.tobytes() == header.tobytes()
    np.testing.assert_array_equal(rest, flat)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_and_arrays_take_each_others_headers(dtype: WireDtype) -> None:
    header = np.array([2**40 + 1, -3, 0], np.int64)
    flat = np.arange(7, dtype=dtype)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = session.run(headers.put_header_tensor(tf.constant(header), tf.constant(flat)))
        whole = tf.constant(headers.put_header(header, flat))
        taken, rest = session.run(headers.take_header_tensor(whole, 3, tf.int64))
    np.testing.assert_array_equal(made, headers.put_header(header, flat))
    np.testing.assert_array_equal(taken, header)
    np.testing.assert_array_equal(rest, flat)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 8, 9])
def test_what_follows_a_header_is_aligned_as_tensorflow_likes_it(
    dtype: WireDtype, length: int
) -> None:
    assert headers.header_size(length, dtype) * np.dtype(dtype).itemsize % 64 == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_apart", [False, True])
def test_either_way_a_worker_and_a_ps_understand_each_other(
    is_apart: bool, dtype: WireDtype
) -> None:
    header = np.array([3e-4, 2.0**40 + 1, 1e-300])
    vectors = [np.arange(size, dtype=dtype) for size in (7, 2)]
    nowhere = ""  # there is no cluster
    way = headers.Apart(3, dtype) if is_apart else headers.InFront(3, dtype, nowhere)
    with tf.Graph().as_default():
        inputs, taken, rest = way.inputs([7, 2])
        outputs = way.outputs(tf.bitcast(2 * taken, tf.int64), [1 + part for part in rest])
        feed = dict(zip(inputs, way.fed(header, vectors), strict=True))
        with tf.compat.v1.Session() as session:
            answer, back = way.fetched(session.run(outputs, feed))
    np.testing.assert_array_equal(answer.view(np.float64), 2 * header)
    for vector, part in zip(vectors, back, strict=True):
        np.testing.assert_array_equal(part, 1 + vector)


def test_numbers_travel_apart_where_the_vector_is_long() -> None:
    assert isinstance(way(30_084, "float32"), headers.InFront)
    assert isinstance(way(677_172, "float32"), headers.Apart)
    assert isinstance(way(677_172 // 2, "float16"), headers.InFront)


def test_numbers_travel_apart_where_that_takes_no_call_of_its_own() -> None:
    assert isinstance(way(30_084, "float32", in_one_call=True), headers.Apart)


def way(num_parameters: int, dtype: WireDtype, *, in_one_call: bool = False) -> headers.Header:
    return headers.way(3, num_parameters, dtype, "/job:ps/task:0", in_one_call=in_one_call)
