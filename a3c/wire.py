"""What travels between a worker and a ps: one tensor each way, in full or in half precision.

In front of the gradient to the first ps, and of its parameters, there is a header of whole numbers
and numbers in full precision, bit by bit: a tensor of its own would cost both sides a call of the
runtime, a third of a millisecond. It is as long as tensors are aligned, so that what is behind
it is aligned too.

Half precision holds numbers from 6e-8 to 65504 only, and gradients are small: they travel as
multiples of a unit that makes their norm 1024. Parameters travel as they are.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import tensorflow as tf

WireDtype = Literal["float32", "float16"]

_ALIGNED = 8  # numbers of 64 bits in what TensorFlow aligns tensors to
_PACKED_NORM = 1024.0
_SMALLEST_NORM = 1e-30


# --- headers ------------------------------------------------------------------------------------


def padded(length: int) -> int:
    """How many numbers a header of so many takes."""
    return -length % _ALIGNED + length


def header_size(length: int, dtype: WireDtype) -> int:
    """How many elements of a tensor a header of so many numbers takes."""
    return padded(length) * 8 // np.dtype(dtype).itemsize


def put_header(header: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """A vector behind a header of 64-bit numbers."""
    whole = np.zeros(padded(len(header)), header.dtype)
    whole[: len(header)] = header
    return np.concatenate([whole.view(flat.dtype), flat])


def take_header(
    whole: np.ndarray, length: int, dtype: type[np.generic]
) -> tuple[np.ndarray, np.ndarray]:
    """The header of 64-bit numbers in front of a vector, and the vector: views of the whole."""
    end = padded(length) * 8 // whole.dtype.itemsize
    return whole[:end].view(dtype)[:length], whole[end:]


def put_header_tensor(header: Any, flat: Any) -> Any:
    """`put_header` for tensors."""
    length = header.shape[0]
    whole = tf.pad(header, [[0, padded(length) - length]])
    return tf.concat([tf.reshape(tf.bitcast(whole, flat.dtype), [-1]), flat], axis=0)


def take_header_tensor(whole: Any, length: int, dtype: Any) -> tuple[Any, Any]:
    """`take_header` for tensors."""
    end = header_size(length, whole.dtype.name)
    words = tf.reshape(whole[:end], [-1, 8 // whole.dtype.size])
    return tf.bitcast(words, dtype)[:length], whole[end:]


# --- gradients and parameters -------------------------------------------------------------------


def pack(gradient: Any, norm: Any, dtype: WireDtype) -> tuple[Any, Any]:
    """A gradient of that norm as it travels, and the unit to multiply it by again."""
    if dtype == "float32":
        return gradient, tf.ones_like(norm)
    unit = tf.maximum(norm, _SMALLEST_NORM) / _PACKED_NORM
    return tf.cast(gradient / unit, tf.float16), unit


def unpack(packed: Any, unit: Any, dtype: WireDtype) -> Any:
    """The gradient that was packed."""
    return packed if dtype == "float32" else tf.cast(packed, tf.float32) * unit


def narrow(parameters: Any, dtype: WireDtype) -> Any:
    """Parameters as they travel."""
    return tf.cast(parameters, dtype)
