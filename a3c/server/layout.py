"""Where each parameter lies: its place in the flat vector, and which ps holds which stretch of it.

The ps keep the parameters as one vector, cut into as many stretches of equal length: a stretch is
one variable with one step of the optimizer, one message to the ps and one back. Ten variables would
cost the ps ten of each, and one layer may hold nearly all parameters, so that sharing out whole
variables would leave one ps with nearly all of the work.
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
    """A stretch of the flat vector: one variable on one ps."""

    name: str
    ps: int
    start: int
    stop: int
    apart: bool  # of the parameters that learn at a rate of their own

    @property
    def size(self) -> int:
        """Its elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """The parameters in the order of the flat vector, and the shards that it is cut into.

    `names` and `shapes` run in parallel; shards follow each other without gaps.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shards: tuple[Shard, ...]

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(self.sizes)

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Views of the flat vector, one a shard."""
        return [flat[shard.start : shard.stop] for shard in self.shards]

    def unflatten(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the flat vector, one a parameter, by name."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1])
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in named}

    def flatten(self, named: Mapping[str, np.ndarray]) -> np.ndarray:
        """The flat vector of parameters by name."""
        return np.concatenate([np.ravel(named[name]) for name in self.names])


def cut(
    shapes: Mapping[str, tuple[int, ...]],
    num_ps: int,
    is_apart: Callable[[str], bool] = lambda _: False,
) -> Layout:
    """Lay the parameters out in their order and cut them into `num_ps` stretches of equal length.

    Those that are apart come last and are cut by themselves. Raises UserError where a ps would get
    nothing.
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
    """`num_ps` stretches from `start` to `stop`, as (ps, start, stop, apart); no empty ones."""
    edges = [start + (stop - start) * ps // num_ps for ps in range(num_ps + 1)]
    return [
        (ps, *edge, apart) for ps, edge in enumerate(itertools.pairwise(edges)) if edge[0] < edge[1]
    ]
