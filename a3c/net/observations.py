"""Prepare observations for networks: images in 0..1 with channels last, others as flat float32.

A Box of three or four dimensions is an image, and so is a two-dimensional Box of uint8. Channels
are the shorter of a frame's first and last axes (the last axis if both are equal). The first axis
of a four-dimensional Box is a stack of frames, which is folded into the channels, oldest frame
first. Images are divided by the highest value of their space: 255 for frames. Every other Box is
flattened to `[features]`.

Running normalisation is applied after that, with a mean and deviation for each feature, or one mean
and deviation for all pixels of an image.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box

from a3c.net.frames import channels_first
from a3c.net.frames import is_image as is_image
from a3c.net.frames import prepared_shape as prepared_shape

# With fewer samples the deviation is too inaccurate to divide by.
MIN_COUNT = 100
CLIP = 10.0
_BLOCK = 32  # how many frames, or stacks of frames, are converted to float at a time
_EPSILON = 1e-8


class Statistics(NamedTuple):
    """Float64 sums over observations, which can be added over rollouts and workers."""

    count: Any  # []
    sum: Any  # statistics_shape
    sum_of_squares: Any  # statistics_shape


def image_axes(space: Box) -> tuple[int, int]:
    """The axes of an image's rows and columns, counted from the end."""
    return (-2, -1) if len(space.shape) == 2 or channels_first(space) else (-3, -2)


def frames(observation: np.ndarray, space: Box) -> np.ndarray:
    """The frames of one image observation, oldest first, `[N, height, width, channels]`.

    Three colour channels stay together as the last axis of one frame. Every other channel becomes a
    frame with one channel.
    """
    if len(space.shape) == 2:
        return observation[None, :, :, None]
    stacks = np.moveaxis(observation, image_axes(space), (-3, -2))  # [..., height, width, channels]
    is_colour = stacks.shape[-1] == 3 and (stacks.ndim == 4 or not channels_first(space))
    if is_colour or (stacks.ndim == 4 and stacks.shape[-1] == 1):
        return stacks.reshape(-1, *stacks.shape[-3:])
    return np.moveaxis(stacks, -1, -3).reshape(-1, *stacks.shape[-3:-1], 1)


def prepare(observations: Any, space: Box, statistics: Any = None) -> Any:
    """Turn raw observations `[T, B, *space.shape]` into float32 `[T, B, *prepared_shape(space)]`.

    `statistics` is a `Statistics`, or its three tensors or arrays in order; None means no
    normalisation.
    """
    leading = tf.shape(observations)[:2]
    static = observations.shape[:2].as_list()
    images = _channels_last(observations, space) if is_image(space) else observations
    shape = prepared_shape(space)
    features = tf.reshape(images, tf.concat([leading, shape], axis=0))
    features.set_shape([*static, *shape])
    normal = None if statistics is None else _normal(statistics)
    if is_image(space) and space.dtype == np.uint8:
        return _from_bytes(features, _highest(space), normal)
    features = tf.cast(features, tf.float32)
    if is_image(space):
        features = features * (1.0 / _highest(space))
    if normal is None:
        return features
    return tf.clip_by_value((features - normal.mean) * normal.scale, -normal.limit, normal.limit)


class _Normal(NamedTuple):
    """The float32 constants of the normalisation: clip((x - mean) * scale, ±limit)."""

    mean: Any
    scale: Any
    limit: Any  # []


def _normal(statistics: Any) -> _Normal:
    """Mean, 1 / sqrt(variance + 1e-8) and ±10; no normalisation below `MIN_COUNT` samples."""
    count, total, squares = (tf.cast(part, tf.float64) for part in statistics)
    safe_count = tf.maximum(count, 1.0)
    mean = total / safe_count
    variance = tf.maximum(squares / safe_count - mean**2, 0.0)
    scale = 1.0 / tf.sqrt(variance + _EPSILON)
    # `tf.where` on these few numbers is cheap; on features it takes longer than a convolution.
    are_few = count < MIN_COUNT
    normal = _Normal(
        tf.where(are_few, tf.zeros_like(mean), mean),
        tf.where(are_few, tf.ones_like(scale), scale),
        tf.where(are_few, np.inf, CLIP),
    )
    return _Normal(*(tf.cast(part, tf.float32) for part in normal))


def _from_bytes(images: Any, highest: float, normal: _Normal | None) -> Any:
    """Scale and normalise bytes in one pass; two passes take twice as long."""
    mean, scale, limit = normal or _Normal(0.0, 1.0, np.inf)
    low, high = -mean * scale, (255.0 / highest - mean) * scale
    codes = tf.bitcast(images, tf.quint8)
    features = tf.quantization.dequantize(codes, low, high, mode="MIN_COMBINED")
    return features if normal is None else tf.clip_by_value(features, -limit, limit)


def statistics_shape(space: Box) -> tuple[int, ...]:
    """The shape of the sums: one number per feature of a vector, one number for an image."""
    return () if is_image(space) else prepared_shape(space)


def moments(observations: np.ndarray, mask: np.ndarray, space: Box) -> Statistics:
    """The contribution of a rollout's raw observations `[T, B, ...]` to the statistics.

    An observation counts only if `mask` `[T, B]` is true and all its numbers are finite in float32,
    because a single NaN would stay in the sums forever.
    """
    if is_image(space) and space.dtype == np.uint8:
        return _byte_moments(observations[np.asarray(mask) > 0], _highest(space))
    features = math.prod(space.shape)
    shape = statistics_shape(space)
    count, total, squares = 0, np.zeros(shape), np.zeros(shape)
    # One time step at a time, because a float64 copy of a rollout of frames takes much memory.
    for step, kept in zip(observations, np.asarray(mask) > 0, strict=True):
        rows = step[kept].reshape(np.count_nonzero(kept), features).astype(np.float64)
        rows = rows[(np.abs(rows) <= np.finfo(np.float32).max).all(axis=1)]
        if is_image(space):
            rows = (rows / _highest(space)).reshape(-1)  # [N * F]
        count += len(rows)
        total += rows.sum(axis=0)
        squares += (rows**2).sum(axis=0)
    return Statistics(np.float64(count), total, squares)


def _byte_moments(frames: np.ndarray, highest: float) -> Statistics:
    """Moments of `[N, ...]` bytes, computed in blocks of rows.

    Float32 sums have an error of up to 1e-5, which is negligible beside the deviation of frames.
    They take a third of the time of a histogram of the values.
    """
    total = squares = 0.0
    for first in range(0, len(frames), _BLOCK):
        block = frames[first : first + _BLOCK].ravel().astype(np.float32)
        total += float(block.sum())
        squares += float(block @ block)
    return Statistics(
        np.float64(frames.size), np.float64(total / highest), np.float64(squares / highest**2)
    )


def picture(observation: np.ndarray, space: Box) -> np.ndarray:
    """One raw observation of an image space as a picture: uint8 `[height, width, 1 or 3]`.

    The frames of a stack are side by side, the oldest at the left. So are channels, except that
    three channels are colours.
    """
    assert is_image(space)
    if len(space.shape) == 2:
        frames = observation[None, :, :, None]
    else:
        frames = observation[None] if len(space.shape) == 3 else observation
        frames = np.moveaxis(frames, 1, -1) if channels_first(space) else frames  # [N, H, W, C]
    if frames.shape[-1] != 3:
        frames = np.moveaxis(frames, -1, 1).reshape(-1, *frames.shape[1:3], 1)
    low = float(np.min(space.low)) if np.isfinite(space.low).all() else 0.0
    shares = (np.concatenate(list(frames), axis=1) - low) / max(_highest(space) - low, 1e-9)
    return np.rint(255 * np.clip(np.nan_to_num(shares), 0.0, 1.0)).astype(np.uint8)


def _channels_last(images: Any, space: Box) -> Any:
    """Transpose `[T, B, *space.shape]` so that a reshape gives height, width, channels."""
    rank = len(space.shape)
    if rank == 2:
        return images
    if rank == 3:
        return tf.transpose(images, [0, 1, 3, 4, 2]) if channels_first(space) else images
    axes = [0, 1, 4, 5, 2, 3] if channels_first(space) else [0, 1, 3, 4, 2, 5]
    return tf.transpose(images, axes)


def _highest(space: Box) -> float:
    """The divisor for images of this space: their upper bound, or 1 if there is none."""
    highest = float(np.max(space.high))
    return highest if np.isfinite(highest) and highest > 0 else 1.0
