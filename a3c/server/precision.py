"""The wire format between a worker and a ps: one tensor each way, in full or half precision.

Half precision holds only magnitudes from 6e-8 to 65504, and gradients are small. So gradients are
divided by a unit that makes their norm 1024. Parameters are sent unscaled.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

WireDtype = Literal["float32", "float16"]

_PACKED_NORM = 1024.0
_SMALLEST_NORM = 1e-30


def pack(gradient: Any, norm: Any, dtype: WireDtype) -> tuple[Any, Any]:
    """Convert a gradient of this norm to `dtype`; returns it and the unit to multiply it by."""
    if dtype == "float32":
        return gradient, tf.ones_like(norm)
    unit = tf.maximum(norm, _SMALLEST_NORM) / _PACKED_NORM
    return tf.cast(gradient / unit, tf.float16), unit


def unpack(packed: Any, unit: Any, dtype: WireDtype) -> Any:
    """The gradient that `pack` converted, as float32."""
    return packed if dtype == "float32" else tf.cast(packed, tf.float32) * unit


def narrow(parameters: Any, dtype: WireDtype) -> Any:
    """Parameters in the wire dtype."""
    return tf.cast(parameters, dtype)
