"""The place of each parameter in the flat vector, and the ps that holds each shard of the vector.

The parameters form one vector, cut into one shard of equal length per ps. A shard is one variable,
so an update needs one optimizer step, one message to the ps and one back. Ten variables would need
ten of each. Whole variables can't be shared out evenly either: one layer may hold nearly all
parameters, and its ps would do nearly all of the work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from a3c.errors import UserError


@dataclass(frozen=True)
class Shard:
    """A contiguous part of the flat vector: one variable on one ps."""

    name: str
    ps: int
    start: int
    stop: int
    apart: bool  # holds the parameters with their own learning rate

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """The parameters in the order of the flat vector, and the shards of that vector.

    `names` and `shapes` have the same order; shards follow each other without gaps.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shards: tuple[Shard, ...]

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def num_parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(self.sizes)

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Views of the flat vector, one per shard."""
        return [flat[shard.start : shard.stop] for shard in self.shards]

    def unflatten(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the flat vector, one per parameter, by name."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1])
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in named}

    def flatten(self, named: Mapping[str, np.ndarray]) -> np.ndarray:
        """Join parameters given by name into the flat vector."""
        return np.concatenate([np.ravel(named[name]) for name in self.names])


def cut(
    shapes: Mapping[str, tuple[int, ...]],
    num_ps: int,
    is_apart: Callable[[str], bool] = lambda _: False,
) -> Layout:
    """Put the parameters in order and cut them into `num_ps` shards of equal length.

    Parameters that `is_apart` selects come last and are cut separately. Raises UserError if a ps
    would get no parameters.
    """
    together = [name for name in shapes if not is_apart(name)]
    apart = [name for name in shapes if is_apart(name)]
    names = (*together, *apart)
    length, total = (sum(math.prod(shapes[n]) for n in group) for group in (together, names))
    if num_ps > total:
        raise UserError(f"--ps {num_ps} is too many: the network has {total} parameters")
    stretches = [*_stretches(0, length, num_ps, False), *_stretches(length, total, num_ps, True)]
    shards = (Shard(f"parameters_{number}", *stretch) for number, stretch in enumerate(stretches))
    return Layout(names, tuple(tuple(shapes[name]) for name in names), tuple(shards))


def _stretches(start: int, stop: int, num_ps: int, apart: bool) -> list[tuple[int, int, int, bool]]:
    """Cut `start` to `stop` into one part per ps, as (ps, start, stop, apart); no empty parts."""
    edges = [start + (stop - start) * ps // num_ps for ps in range(num_ps + 1)]
    return [
        (ps, *edge, apart) for ps, edge in enumerate(itertools.pairwise(edges)) if edge[0] < edge[1]
    ]
