"""Observations as networks get them, and their running normalisation."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete

from a3c.env.spaces import is_image
from a3c.net import observations
from tests.clusters import agent, batch_of, small_config
from tests.graphs import run

ATARI = Box(0, 255, (4, 12, 10), np.uint8)
RGB = Box(0, 255, (12, 10, 3), np.uint8)
STACK = Box(0, 255, (4, 12, 14), np.uint8)
LAST = Box(0, 255, (12, 10, 4), np.uint8)
RGB_STACK_CHANNELS_FIRST = Box(0, 255, (2, 3, 12, 10), np.uint8)
UNIT_IMAGE = Box(0.0, 1.0, (12, 10, 1), np.float32)
VECTOR = Box(-1.0, 1.0, (4,), np.float32)
MATRIX = Box(-np.inf, np.inf, (2, 3), np.float64)
# The order of axes and the shape of a prepared observation, and the shape of its picture.
SHAPES: list[tuple[Box, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    (ATARI, (1, 2, 0), (12, 10, 4), (12, 40, 1)),
    (Box(0, 255, (3, 12, 10), np.uint8), (1, 2, 0), (12, 10, 3), (12, 30, 1)),  # not colours
    (LAST, (0, 1, 2), (12, 10, 4), (12, 40, 1)),
    (RGB, (0, 1, 2), (12, 10, 3), (12, 10, 3)),
    (Box(0, 255, (12, 10), np.uint8), (0, 1), (12, 10, 1), (12, 10, 1)),
    (Box(0, 255, (2, 12, 10, 3), np.uint8), (1, 2, 0, 3), (12, 10, 6), (12, 20, 3)),
    (RGB_STACK_CHANNELS_FIRST, (2, 3, 0, 1), (12, 10, 6), (12, 20, 3)),
    (UNIT_IMAGE, (0, 1, 2), (12, 10, 1), (12, 10, 1)),
    (Box(-np.inf, np.inf, (5, 5, 1), np.float32), (0, 1, 2), (5, 5, 1), (5, 5, 1)),
    (Box(-np.inf, np.inf, (9, 9, 3), np.int8), (0, 1, 2), (9, 9, 3), (9, 9, 3)),
    (Box(-np.inf, np.inf, (9, 9, 3), np.int32), (0, 1, 2), (9, 9, 3), (9, 9, 3)),  # not scaled
    (Box(0.0, 1.0, (8, 8, 12), np.float32), (0, 1, 2), (8, 8, 12), (8, 96, 1)),  # chess
    (Box(0.0, 1.0, (17, 9, 9), np.float32), (1, 2, 0), (9, 9, 17), (9, 153, 1)),  # Go
    (VECTOR, (0,), (4,), ()),
    (MATRIX, (0, 1), (6,), ()),
    (Box(-1.0, 1.0, (), np.float32), (), (1,), ()),
]
ALL = [space for space, *_ in SHAPES]


def prepare(raw: np.ndarray, space: Box, statistics: Any = None) -> np.ndarray:
    def build() -> Any:
        inputs = tf.compat.v1.placeholder_with_default(raw, [None, None, *space.shape])
        outputs = observations.prepare(inputs, space, statistics)
        assert outputs.dtype == tf.float32
        assert tuple(outputs.shape[2:].as_list()) == observations.prepared_shape(space)
        return outputs

    return run(build)


def rollout(space: Box, time: int = 2, batch: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = (time, batch, *space.shape)
    if isinstance(space.dtype, np.dtype) and space.dtype.kind in "iu":
        high = 128 if space.dtype == np.int8 else 256
        return rng.integers(0, high, shape, space.dtype)
    return rng.uniform(0, 1, shape).astype(space.dtype)


@pytest.mark.parametrize(("space", "axes", "shape", "picture"), SHAPES)
def test_images_get_channels_last_and_bytes_are_scaled_to_one(
    space: Box, axes: Any, shape: Any, picture: Any
) -> None:
    raw = rollout(space)
    ordered = raw.transpose(0, 1, *(2 + axis for axis in axes)).reshape(2, 3, *shape)
    prepared = prepare(raw, space)
    if space.dtype == np.uint8:
        np.testing.assert_allclose(prepared, ordered / 255, rtol=1e-6)
    else:
        np.testing.assert_array_equal(prepared, ordered.astype(np.float32))
    assert is_image(space) == bool(picture)
    if picture:  # with its frames side by side
        drawn = observations.picture(raw[0, 0], space)
        assert drawn.shape == picture
        assert drawn.dtype == np.uint8


@pytest.mark.parametrize("space", ALL, ids=str)
def test_moments_sum_exactly_what_prepare_gives_and_normalise_it(space: Box) -> None:
    raw = rollout(space, time=20, batch=10)
    mask = np.random.default_rng(1).random((20, 10)) < 0.7
    moments = observations.moments(raw, mask, space)
    assert moments.dtype == np.float64
    assert moments.shape == (observations.statistics_size(space),)

    def features(statistics: Any) -> np.ndarray:
        prepared = prepare(raw, space, statistics)[mask].astype(np.float64)
        return prepared.reshape(-1, 1 if is_image(space) else prepared.shape[-1])

    plain, normal = features(None), features(moments)
    expected = [len(plain), *plain.sum(0), *(plain**2).sum(0)]
    np.testing.assert_allclose(moments, expected, rtol=1e-6)
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(normal.std(0), 1.0, atol=1e-3)


@pytest.mark.parametrize("space", [MATRIX, UNIT_IMAGE], ids=str)
def test_masked_and_non_finite_observations_do_not_count(space: Box) -> None:
    raw = rollout(space)
    mask = np.ones((2, 3), bool)
    clean = observations.moments(raw[1:], mask[1:], space)
    raw[0, 0].flat[0], raw[0, 1].flat[1], raw[0, 2].flat[2] = np.nan, np.inf, np.nan
    mask[0, 2] = False
    np.testing.assert_array_equal(observations.moments(raw, mask, space), clean)


def test_normalisation_waits_for_enough_samples() -> None:
    raw = rollout(VECTOR)
    few, enough = (np.array([n, *[1.0] * 4, *[400.0] * 4]) for n in (99, observations.MIN_COUNT))
    np.testing.assert_array_equal(prepare(raw, VECTOR, few), raw)
    assert np.abs(prepare(raw, VECTOR, enough) - raw).max() > 0.1


def test_normalisation_clips_at_ten_deviations_and_bears_constants() -> None:
    count = 1000.0
    mean, variance = np.array([5.0, 0.0, 0.0, 1e6]), np.array([0.0, 1.0, 1.0, 4.0])
    statistics = np.array([count, *(count * mean), *(count * (variance + mean**2))])
    raw = np.array([[[5.0, 1e9, -1e9, 1e6 + 2]]], np.float32)
    prepared = prepare(raw, VECTOR, statistics)
    np.testing.assert_allclose(prepared[0, 0], [0.0, 10.0, -10.0, 1.0], atol=1e-3)


def test_a_picture_of_bytes_shows_just_these_bytes() -> None:
    stack = rollout(ATARI)[0, 0]
    picture = observations.picture(stack, ATARI)
    for i, frame in enumerate(stack):
        np.testing.assert_array_equal(picture[:, 10 * i : 10 * (i + 1), 0], frame)
    turned = np.moveaxis(stack, 0, -1)
    np.testing.assert_array_equal(observations.picture(turned, LAST), picture)
    colours = rollout(RGB_STACK_CHANNELS_FIRST)[0, 0]
    picture = observations.picture(colours, RGB_STACK_CHANNELS_FIRST)
    np.testing.assert_array_equal(picture[:, 10:, 2], colours[1, 2])
    # It goes from black at the lowest to white at the highest.
    space = Box(-1.0, 1.0, (1, 3, 1), np.float32)
    values = np.array([-1.0, 0.0, 1.0], np.float32).reshape(1, 3, 1)
    assert observations.picture(values, space).ravel().tolist() == [0, 128, 255]


def test_transposing_twice_changes_nothing() -> None:
    raw = rollout(STACK)
    fed = observations.channels_last(raw, STACK)
    assert fed.flags.c_contiguous
    np.testing.assert_array_equal(fed, np.moveaxis(raw, -3, -1))
    assert observations.channels_last(fed, STACK) is fed
    for whole in (fed, raw):
        np.testing.assert_array_equal(observations.pixels(whole[0, 0], STACK), raw[0, 0])
    high = 1 + raw[0, 0] // 2
    bounded = Box(np.zeros_like(high), high, dtype=np.uint8)
    turned = observations.channels_last_space(bounded)
    np.testing.assert_array_equal(turned.high, np.moveaxis(high, 0, -1))
    assert observations.prepared_shape(turned) == observations.prepared_shape(bounded)
    narrow = Box(-1.0, 1.0, (4, 2, 36))
    assert observations.prepared_shape(narrow) == (2, 36, 4)
    others = (RGB, RGB_STACK_CHANNELS_FIRST, Box(0, 255, (4, 4, 4), np.uint8), VECTOR, narrow)
    for space in others:
        raw = rollout(space)
        assert observations.channels_last(raw, space) is raw
        assert observations.channels_last_space(space) is space


def test_both_channel_orders_give_equal_actions_and_gradients() -> None:
    config = small_config(network="universe-ff", normalize_observations=True)
    actor = agent(config, STACK, Discrete(3))
    raw, ones = rollout(STACK, 5, 2), np.ones((5, 2), np.float32)
    both = [raw, observations.channels_last(raw, STACK)]
    state, starts = actor.initial_state(2), np.zeros(2, bool)
    first, second = (actor.value(each[0], state, starts) for each in both)
    np.testing.assert_array_equal(first, second)

    batches = (batch_of(actor, each, advantages=ones, returns=ones) for each in both)
    first, second = (actor.gradient(batch, 0.01, 0.0).flat for batch in batches)
    np.testing.assert_array_equal(first, second)
    first, second = (actor.observation_statistics(each, ones) for each in both)
    np.testing.assert_allclose(first, second, rtol=1e-6)
