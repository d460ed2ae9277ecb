"""Prepare observations for networks: images in 0..1 with channels last, others as flat float32.

A Box of three or four dimensions is an image, and so is a two-dimensional Box of uint8. If a frame
has two equal axes beside each other, such as the sides of a board, its channels are the third.
Otherwise they are the shorter of the first and last axes (the last axis if both are equal). The
first axis of a four-dimensional Box is a stack of frames, which is folded into the channels, oldest
frame first. Images are divided by the highest value of their space. Every other Box becomes
`[features]`.

`a3c.env.spaces` packs observations of several parts into one vector: `prepare` prepares each part
and leaves the action mask out, and `split` gives the image and the vector to the network.

Running normalisation comes last, with a mean and deviation for each feature, or one for all pixels.
Frames are transposed with NumPy before they are fed, because TensorFlow takes six times as long.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from a3c.env.spaces import Packed, is_image
from a3c.errors import UserError

# With fewer samples the deviation is too inaccurate to divide by.
MIN_COUNT = 100


def channels_first(space: Box) -> bool:
    """Whether the frames of an image space are `[channels, height, width]`."""
    if len(space.shape) < 3:
        return False
    first, middle, last = space.shape[-3:]
    return first < last if middle not in (first, last) else middle == last != first


def prepared_shape(space: Box) -> tuple[int, ...]:
    """The shape of one prepared observation: `(height, width, channels)` or `(features,)`."""
    if isinstance(space, Packed):
        return (sum(math.prod(part.shape) for part in space.parts),)
    if not is_image(space):
        return (math.prod(space.shape),)
    if len(space.shape) == 2:
        return (*space.shape, 1)
    *stack, first, second, third = space.shape
    height, width, channels = (
        (second, third, first) if channels_first(space) else (first, second, third)
    )
    return height, width, channels * math.prod(stack)


def image_space(space: Box) -> Box | None:
    """The space of the image in observations, alone or packed; None if there is none."""
    image = space.image if isinstance(space, Packed) else space
    return image if image is not None and is_image(image) else None


def pixels(observation: np.ndarray, image: Box) -> np.ndarray:
    """The image in one observation, also of a rollout, alone or packed, as `[*image.shape]`."""
    if observation.ndim == 3 and observation.shape != image.shape:
        return np.moveaxis(observation, -1, 0)  # undoes `channels_last`
    return observation.ravel()[: math.prod(image.shape)].reshape(image.shape)


def image_side(space: Box) -> int:
    """The shorter side in pixels of the image in an observation; 0 if there is none."""
    image = image_space(space)
    return min(prepared_shape(image)[:2]) if image else 0


def check_side(network: str, needed: int, space: Box) -> None:
    """Raise UserError if a network needs images, and observations are not images or too small."""
    if image_side(space) < needed:
        shape = (image_space(space) or space).shape
        raise UserError(
            f"network {network} needs images of at least {needed}x{needed} pixels, but "
            f"observations are {shape}: use --network mlp or mlp-lstm"
        )


def statistics_size(space: Box) -> int:
    """The length of a vector of statistics, which can be added over rollouts and workers.

    It holds a count, sums and sums of squares: per feature of a vector, or of all pixels. The
    statistics of several parts follow one another.
    """
    if isinstance(space, Packed):
        return sum(statistics_size(part) for part in space.parts)
    return 1 + 2 * _num_sums(space)


def _num_sums(space: Box) -> int:
    return 1 if is_image(space) else math.prod(space.shape)


def _highest(space: Box) -> float:
    """The divisor for images of this space: their upper bound, or 1 if there is none.

    For an unbounded space of integers Gymnasium gives the largest integer as its bound.
    """
    highest = float(np.max(space.high))
    if space.dtype.kind == "i" and highest == 2 ** (8 * space.dtype.itemsize - 1) - 1:
        return 1.0
    return highest if 0 < highest < 2**31 - 1 else 1.0


def _is_transposed(space: Box) -> bool:
    """Whether observations of this space are transposed before they are fed.

    Not if the transposed ones would look like channels first again, as of `[4, 2, 36]`.
    """
    shape = space.shape
    return len(shape) == 3 and channels_first(space) and shape[0] <= shape[1]


def channels_last_space(space: Box) -> Box:
    """The space of the observations that `channels_last` returns."""
    if not _is_transposed(space):
        return space
    low, high = (np.moveaxis(edge, 0, -1) for edge in (space.low, space.high))
    return Box(low, high, dtype=space.dtype.type)


def channels_last(observations: np.ndarray, space: Box) -> np.ndarray:
    """Observations `[..., *space.shape]` with channels last; unchanged if they already are."""
    if not _is_transposed(space) or observations.shape[-3:] != space.shape:
        return observations
    transposed = np.empty((*observations.shape[:-3], *space.shape[1:], space.shape[0]), space.dtype)
    for channel in range(space.shape[0]):  # a tenth of the time of one assignment
        transposed[..., channel] = observations[..., channel, :, :]
    return transposed


def prepare(observations: Any, space: Box, statistics: Any = None) -> Any:
    """Turn raw observations `[T, B, *space.shape]` into float32 `[T, B, *prepared_shape(space)]`.

    `statistics` is a vector of `statistics_size`; None means no normalisation.
    """
    import tensorflow as tf  # not above: the launcher checks shapes without it

    if isinstance(space, Packed):
        parts = []
        for part, numbers, statistics_of_part in _parts(space):
            raw = reshape(observations[..., numbers], observations, 2, part.shape)
            own = None if statistics is None else statistics[statistics_of_part]
            parts.append(reshape(prepare(raw, part, own), raw, 2, [math.prod(part.shape)]))
        return tf.concat(parts, axis=-1)
    # Frames and channels move to the end, so that a reshape joins them to the channels.
    axes = {
        (3, True): [0, 1, 3, 4, 2],
        (4, True): [0, 1, 4, 5, 2, 3],
        (4, False): [0, 1, 3, 4, 2, 5],
    }.get((len(space.shape), channels_first(space)))
    images = tf.transpose(observations, axes) if axes else observations
    features = reshape(images, images, 2, prepared_shape(space))
    mean, scale, limit = (0.0, 1.0, None) if statistics is None else _normal(statistics, space)
    if is_image(space) and observations.dtype == tf.uint8:
        # Scale and normalise bytes in one pass; two passes take twice as long.
        low, high = -mean * scale, (255.0 / _highest(space) - mean) * scale
        codes = tf.bitcast(features, tf.quint8)
        features = tf.quantization.dequantize(codes, low, high, mode="MIN_COMBINED")
    else:
        features = tf.cast(features, tf.float32)
        if is_image(space):
            features = features * (1.0 / _highest(space))
        if statistics is not None:
            features = (features - mean) * scale
    return features if limit is None else tf.clip_by_value(features, -limit, limit)


def split(prepared: Any, space: Box) -> tuple[Any, Any]:
    """The image or vector in prepared observations, and the vector beside an image or None."""
    image = space.image if isinstance(space, Packed) else None
    if image is None:
        return prepared, None
    size = math.prod(image.shape)
    vector = prepared[..., size:]
    pixels = reshape(prepared[..., :size], prepared, 2, prepared_shape(image))
    return pixels, vector if vector.shape[-1] else None


def action_mask(observations: Any, space: Box) -> Any:
    """The action mask in raw observations, bool `[T, B, number of logits]`, or None."""
    size = space.num_masked if isinstance(space, Packed) else 0
    return observations[..., -size:] > 0 if size else None


def _parts(space: Packed) -> Iterator[tuple[Box, slice, slice]]:
    """Each part, its numbers in an observation, and its statistics in those of all parts."""
    first = first_statistic = 0
    for part in space.parts:
        end, end_statistic = first + math.prod(part.shape), first_statistic + statistics_size(part)
        yield part, slice(first, end), slice(first_statistic, end_statistic)
        first, first_statistic = end, end_statistic


def reshape(tensor: Any, like: Any, end: int, shape: Sequence[int]) -> Any:
    """A tensor with the axes `[:end]` of another one, then those of `shape`."""
    import tensorflow as tf

    reshaped = tf.reshape(tensor, tf.concat([tf.shape(like)[:end], shape], axis=0))
    reshaped.set_shape([*like.shape[:end], *shape])
    return reshaped


def _normal(statistics: Any, space: Box) -> tuple[Any, Any, Any]:
    """Mean, scale and limit: a feature becomes clip((x - mean) * scale, ±limit)."""
    import tensorflow as tf

    count, shape = statistics[0], () if is_image(space) else prepared_shape(space)
    total, squares = tf.unstack(tf.reshape(statistics[1:], [2, *shape]))
    safe_count = tf.maximum(count, 1.0)
    mean = total / safe_count
    variance = tf.maximum(squares / safe_count - mean**2, 0.0)
    scale = 1.0 / tf.sqrt(variance + 1e-8)
    # `tf.where` on these few numbers is cheap; on features it takes longer than a convolution.
    are_few = count < MIN_COUNT
    mean = tf.where(are_few, tf.zeros_like(mean), mean)
    scale = tf.where(are_few, tf.ones_like(scale), scale)
    limit = tf.where(are_few, np.inf, 10.0)
    return tf.cast(mean, tf.float32), tf.cast(scale, tf.float32), tf.cast(limit, tf.float32)


def moments(observations: np.ndarray, mask: np.ndarray, space: Box) -> np.ndarray:
    """The statistics of a rollout's raw observations `[T, B, ...]`, in float64.

    An observation counts if `mask` `[T, B]` is true and all its numbers are finite in float32: a
    NaN would stay in the sums forever.
    """
    if isinstance(space, Packed):
        steps = observations.shape[:2]
        parts = [
            moments(observations[..., numbers].reshape(*steps, *part.shape), mask, part)
            for part, numbers, _ in _parts(space)
        ]
        return np.concatenate(parts)
    size, count = _num_sums(space), 0
    total, squares = np.zeros(size), np.zeros(size)
    # One time step at a time, because a float64 copy of a rollout of frames takes much memory.
    for step, kept in zip(observations, np.asarray(mask) > 0, strict=True):
        rows = step[kept].reshape(np.count_nonzero(kept), math.prod(space.shape)).astype(np.float64)
        if space.dtype != np.uint8:
            rows = rows[(np.abs(rows) <= np.finfo(np.float32).max).all(axis=1)]
        if is_image(space):  # one sum for all pixels; a seventh of the time of the lines below
            count += rows.size
            total += rows.sum()
            squares += np.vdot(rows, rows)
        else:
            count += len(rows)
            total += rows.sum(axis=0)
            squares += (rows**2).sum(axis=0)
    highest = _highest(space) if is_image(space) else 1.0
    return np.array([count, *total / highest, *squares / highest**2])


def frames(image: np.ndarray, space: Box) -> np.ndarray:
    """The frames of one raw image, oldest first: `[N, height, width, 1 or 3]`.

    Three channels are colours, except of `[3, height, width]`, which are three frames. Every other
    channel is a frame of its own.
    """
    if len(space.shape) == 2:
        return image[None, :, :, None]
    stack = image[None] if len(space.shape) == 3 else image
    stack = np.moveaxis(stack, 1, -1) if channels_first(space) else stack  # [N, H, W, C]
    if stack.shape[-1] == 3 and not _is_transposed(space):
        return stack
    return np.moveaxis(stack, -1, 1).reshape(-1, *stack.shape[1:3], 1)


def picture(observation: np.ndarray, space: Box) -> np.ndarray:
    """One raw observation of an image space as a picture, with its frames side by side: uint8."""
    low = float(np.min(space.low)) if np.isfinite(space.low).all() else 0.0
    side_by_side = np.concatenate(list(frames(observation, space)), axis=1)
    shares = (side_by_side - low) / max(_highest(space) - low, 1e-9)
    return np.rint(255 * np.clip(np.nan_to_num(shares), 0.0, 1.0)).astype(np.uint8)
