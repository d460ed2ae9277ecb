"""Where each parameter lies: its ps, and its place in the flat vectors that go over the wire.

A worker sends its gradient and gets its parameters as one flat tensor a ps: a tensor each would
cost the ps one message and one piece of bookkeeping for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from a3c.errors import UserError


@dataclass(frozen=True)
class Layout:
    """The parameters in wire order, grouped by ps.

    `names`, `shapes` and `ps` run in parallel; parameters of ps 0 come first, then those of ps 1.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    ps: tuple[int, ...]
    num_ps: int

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(self.sizes)

    def ps_sizes(self) -> list[int]:
        """Elements on each ps; their order is the order of the flat vector."""
        totals = [0] * self.num_ps
        for ps, size in zip(self.ps, self.sizes, strict=True):
            totals[ps] += size
        return totals

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Views of the flat vector, one a ps."""
        return np.split(flat, np.cumsum(self.ps_sizes())[:-1])

    def unflatten(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the flat vector, one a parameter, by name."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1])
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in named}


def balance(shapes: Mapping[str, tuple[int, ...]], num_ps: int) -> Layout:
    """Put each parameter on the ps with the fewest elements so far, the largest first.

    Raises UserError where that leaves a ps without any.
    """
    if num_ps > len(shapes):
        raise UserError(
            f"--ps {num_ps} is too many: the network has {len(shapes)} variables to share out"
        )
    loads = [0] * num_ps
    groups: list[list[str]] = [[] for _ in range(num_ps)]
    for name in sorted(shapes, key=lambda name: -math.prod(shapes[name])):
        lightest = loads.index(min(loads))
        loads[lightest] += math.prod(shapes[name])
        groups[lightest].append(name)
    in_order = [(name, ps) for ps, group in enumerate(groups) for name in shapes if name in group]
    return Layout(
        names=tuple(name for name, _ in in_order),
        shapes=tuple(tuple(shapes[name]) for name, _ in in_order),
        ps=tuple(ps for _, ps in in_order),
        num_ps=num_ps,
    )
