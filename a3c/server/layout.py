"""The place of each parameter in the flat vector, and the ps that holds each shard of the vector.

The vector is cut into one shard of equal length per ps. A shard is one variable, so an update needs
one optimizer step and one message each way, and all ps work equally, however large one layer is.

A checkpoint holds one variable per parameter, not per shard, so a run can resume with another
number of ps. An optimizer slot is named after its parameter, as in `conv1/weights/Adam`. Each shard
has optimizer counters; only one set is saved, because all of them count the same steps.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from a3c.errors import UserError

COUNTERS = "counters"  # name prefix of an optimizer's scalar variables, such as beta1_power

Values = dict[str, np.ndarray]


class Shard(NamedTuple):
    """A contiguous part of the flat vector: one variable on one ps."""

    name: str
    ps: int
    start: int
    stop: int
    separate: bool  # its parameters have a learning rate or a clip of their own

    @property
    def size(self) -> int:
        return self.stop - self.start


class Layout(NamedTuple):
    """The parameters in the order of the flat vector, and its shards, which have no gaps."""

    shapes: dict[str, tuple[int, ...]]
    shards: tuple[Shard, ...]

    @property
    def num_parameters(self) -> int:
        return self.shards[-1].stop

    def unflatten(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the flat vector, one per parameter, by name."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in named}


def cut(
    shapes: Mapping[str, tuple[int, ...]],
    num_ps: int,
    is_separate: Callable[[str], bool] = lambda _: False,
) -> Layout:
    """Cut the vector of all parameters into `num_ps` shards of equal length.

    Parameters that `is_separate` selects must come last and are cut into shards of their own.
    Raises UserError if a ps would get no parameters.
    """
    assert [*map(is_separate, shapes)] == sorted(map(is_separate, shapes))
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total, length = sum(sizes.values()), sum(sizes[n] for n in sizes if not is_separate(n))
    if num_ps > max(length, total - length):  # each part is cut by itself
        own = f", {total - length} of them of the value alone" if length < total else ""
        raise UserError(f"--ps {num_ps} is too many: the network has {total} parameters{own}")
    shards: list[Shard] = []
    for first, last, separate in ((0, length, False), (length, total, True)):
        edges = [first + (last - first) * ps // num_ps for ps in range(num_ps + 1)]
        for ps, (start, stop) in enumerate(itertools.pairwise(edges)):
            if start < stop:
                shards.append(Shard(f"parameters_{len(shards)}", ps, start, stop, separate))
    return Layout(dict(shapes), tuple(shards))


def by_parameter(on_ps: Mapping[str, np.ndarray], layout: Layout) -> Values:
    """Turn values named as on the ps into values named as in checkpoints."""
    shards = [shard.name for shard in layout.shards]
    named: Values = {}
    for key, value in on_ps.items():
        shard = key.partition("/")[0]
        if shard not in shards:
            named.setdefault(_saved(key), value)
        elif shard == shards[0]:
            slot = key.removeprefix(shard)  # "" or, for example, "/Adam_1"
            flat = np.concatenate([on_ps[other + slot] for other in shards])
            named |= {name + slot: part for name, part in layout.unflatten(flat).items()}
    return named


def by_shard(named: Mapping[str, np.ndarray], layout: Layout, keys: Iterable[str]) -> Values:
    """Turn values named as in checkpoints into values for the ps's variables in `keys`.

    Variables that `named` lacks are left out. `named` holds a slot for all parameters or for none.
    """
    shards = {shard.name: shard for shard in layout.shards}
    values: Values = {}
    for key in keys:
        shard = key.partition("/")[0]
        if shard in shards:
            names = [name + key.removeprefix(shard) for name in layout.shapes]
            if names[0] in named:
                flat = np.concatenate([np.ravel(named[name]) for name in names])
                values[key] = flat[shards[shard].start : shards[shard].stop]
        elif _saved(key) in named:
            values[key] = named[_saved(key)]
    return values


def _saved(key: str) -> str:
    """The name in checkpoints: `counters/parameters_1/Adam/beta1_power` is `Adam/beta1_power`."""
    return key.split("/", 2)[2] if key.startswith(f"{COUNTERS}/") else key
