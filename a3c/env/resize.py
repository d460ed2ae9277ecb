"""Shrink images by averaging over areas: what OpenCV calls INTER_AREA, in NumPy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def area_resize(frames: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Shrink `[N, H, W]` frames to `[N, height, width]`; a pixel is the mean of the area it covers.

    The result is that of `cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)` to the
    last bit where neither side shrinks by a whole number: the same float32 operations in the same
    order, and half rounds to even. The transpositions keep what is added up next to each other in
    memory, which makes it about as fast as two matrix products and free of their threads.
    """
    rows = np.ascontiguousarray(frames.transpose(0, 2, 1)).astype(np.float32)  # [N, W, H]
    narrow = _shrink_rows(rows, width).transpose(0, 2, 1)  # [N, H, width]
    small = _shrink_rows(np.ascontiguousarray(narrow), height)  # [N, height, width]
    return np.rint(small, out=small).astype(np.uint8)


def _shrink_rows(images: NDArray[np.float32], target: int) -> NDArray[np.float32]:
    """Shrink axis 1 of `[N, source, M]` to `target`; each row is the mean of the rows it covers."""
    total = np.zeros((len(images), target, images.shape[2]), np.float32)
    part = np.empty_like(total)
    for indices, weights in _taps(images.shape[1], target):
        images.take(indices, axis=1, out=part, mode="clip")  # the other modes copy once more
        part *= weights
        total += part
    return total


@lru_cache(maxsize=16)
def _taps(source: int, target: int) -> tuple[tuple[NDArray[np.intp], NDArray[np.float32]], ...]:
    """For each source row that a target row covers, its index `[target]` and weight `[target, 1]`.

    A target row covers `source / target` rows, of which the first and the last only in part. Rows
    that cover fewer sources than others have entries of weight 0.
    """
    scale = source / target
    starts = np.arange(target) * scale
    firsts = np.floor(starts + 1e-3).astype(np.intp)
    taps = []
    for tap in range(int(np.ceil(scale)) + 1):
        indices = firsts + tap
        covered = np.minimum(indices + 1, starts + scale) - np.maximum(indices, starts)
        weights = np.clip(covered / scale, 0.0, None)[:, None].astype(np.float32)
        taps.append((np.minimum(indices, source - 1), weights))
    return tuple(tap for tap in taps if tap[1].any())
