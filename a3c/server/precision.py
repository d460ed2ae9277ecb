"""What travels between a worker and a ps: one tensor each way, in full or in half precision.

Half precision holds numbers from 6e-8 to 65504 only, and gradients are small: they travel as
multiples of a unit that makes their norm 1024. Parameters travel as they are.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

WireDtype = Literal["float32", "float16"]

_PACKED_NORM = 1024.0
_SMALLEST_NORM = 1e-30


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
