"""How the numbers beside a gradient, and beside the parameters that answer it, travel.

They are whole numbers, or numbers in full precision: env steps, a learning rate, counters, moments.
In front of a ps's vector, bit by bit, they cost no call of the runtime of their own, which
is a quarter of a millisecond on both sides together; but the ps copies the vector twice. Where it
is long, that costs more, and they travel apart; so they do where tensors cost no calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from a3c.wire import WireDtype

APART_BYTES = 1_200_000  # of a ps's first vector: about where both cost the same
_ALIGNED = 8  # numbers of 64 bits in what TensorFlow aligns tensors to


class Header(Protocol):
    """A way to travel to one ps: what is fed and fetched, as a graph and as a caller see it."""

    def inputs(self, sizes: Sequence[int]) -> tuple[list[Any], Any, list[Any]]:
        """What is fed; and in the graph, a header of float64 and vectors of these sizes."""

    def fed(self, header: np.ndarray, vectors: list[np.ndarray]) -> list[np.ndarray]:
        """The values of what is fed."""

    def outputs(self, header: Any, vectors: list[Any]) -> list[Any]:
        """What is fetched to get an int64 header and vectors."""

    def fetched(self, values: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """The header and the vectors, from the values of what is fetched."""


def way(length: int, size: int, dtype: WireDtype, ps: str, *, in_one_call: bool) -> Header:
    """The cheaper way for so many numbers beside a first vector of that size, with that ps.

    `in_one_call` says that all that is fed and fetched travels in one call of the runtime anyhow.
    """
    is_long = size * np.dtype(dtype).itemsize > APART_BYTES
    return Apart(length, dtype) if is_long or in_one_call else InFront(length, dtype, ps)


class Apart:
    """A header is a tensor of its own."""

    def __init__(self, length: int, dtype: WireDtype) -> None:
        self._length, self._dtype = length, dtype

    def inputs(self, sizes: Sequence[int]) -> tuple[list[Any], Any, list[Any]]:
        """The ps asks for the header, and for its vectors."""
        vectors = [_vector(self._dtype, size, number) for number, size in enumerate(sizes)]
        header = tf.compat.v1.placeholder(tf.float64, [self._length], "header")
        return [header, *vectors], header, vectors

    def fed(self, header: np.ndarray, vectors: list[np.ndarray]) -> list[np.ndarray]:
        """One after the other."""
        return [header, *vectors]

    def outputs(self, header: Any, vectors: list[Any]) -> list[Any]:
        """One after the other."""
        return [header, *vectors]

    def fetched(self, values: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """One after the other."""
        return values[0], values[1:]


class InFront:
    """A header is the beginning of the first vector.

    It is as long as tensors are aligned, so that what is behind it is aligned too.
    """

    def __init__(self, length: int, dtype: WireDtype, ps: str) -> None:
        self._length, self._dtype, self._ps = length, dtype, ps

    def inputs(self, sizes: Sequence[int]) -> tuple[list[Any], Any, list[Any]]:
        """The ps takes the first vector apart."""
        first, *others = sizes
        longer = (first + header_size(self._length, self._dtype), *others)
        fed = [_vector(self._dtype, size, number) for number, size in enumerate(longer)]
        with tf.device(self._ps):
            header, vector = take_header_tensor(fed[0], self._length, tf.float64)
        return fed, header, [vector, *fed[1:]]

    def fed(self, header: np.ndarray, vectors: list[np.ndarray]) -> list[np.ndarray]:
        """The first vector, longer, and the others."""
        return [put_header(header, vectors[0]), *vectors[1:]]

    def outputs(self, header: Any, vectors: list[Any]) -> list[Any]:
        """The first vector, longer, and the others."""
        with tf.device(self._ps):
            return [put_header_tensor(header, vectors[0]), *vectors[1:]]

    def fetched(self, values: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """The first vector is taken apart."""
        header, first = take_header(values[0], self._length, np.int64)
        return header, [first, *values[1:]]


def _vector(dtype: WireDtype, size: int, number: int) -> Any:
    return tf.compat.v1.placeholder(dtype, [size], f"gradient_{number}")


# --- in front of a vector -------------------------------------------------------------------------


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
