"""Convert between the ps's variables and a checkpoint's: one variable per parameter, not per shard.

A run can therefore resume with another number of ps. An optimizer slot is named after its
parameter, as in `conv1/weights/Adam`. Each shard has its own optimizer counters; only one set is
saved, because all of them count the same pushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from a3c.server.layout import Layout
from a3c.server.optimizers import COUNTERS

Values = dict[str, np.ndarray]


def by_parameter(held: Mapping[str, np.ndarray], layout: Layout) -> Values:
    """Turn values named as on the ps into values named as in checkpoints."""
    shards = {shard.name for shard in layout.shards}
    slots: dict[str, Values] = {}
    named: Values = {}
    for key, value in held.items():
        shard, slot = _take_apart(key)
        if shard in shards:
            slots.setdefault(slot, {})[shard] = value
        else:
            named.setdefault(_saved(key), value)
    for slot, parts in slots.items():
        flat = np.concatenate([parts[shard.name] for shard in layout.shards])
        for name, value in layout.unflatten(flat).items():
            named[_join(name, slot)] = value
    return named


def by_shard(named: Mapping[str, np.ndarray], layout: Layout, keys: Iterable[str]) -> Values:
    """Turn values named as in checkpoints into values for the ps's variables in `keys`.

    Variables that `named` lacks are left out. Raises KeyError if `named` holds only a part of a
    vector, or a value that the ps has no variable for.
    """
    shards = {shard.name: shard for shard in layout.shards}
    keys, left = list(keys), dict(named)
    flats: Values = {}
    for slot in dict.fromkeys(slot for shard, slot in map(_take_apart, keys) if shard in shards):
        names = [_join(name, slot) for name in layout.names]
        if any(name in left for name in names):
            flats[slot] = np.concatenate([np.ravel(left.pop(name)) for name in names])
    values: Values = {}
    for key in keys:
        name, slot = _take_apart(key)
        if name in shards and slot in flats:
            values[key] = flats[slot][shards[name].start : shards[name].stop]
        elif name not in shards and _saved(key) in named:
            values[key] = named[_saved(key)]
            left.pop(_saved(key), None)
    if left:
        raise KeyError(min(left))
    return values


def _take_apart(key: str) -> tuple[str, str]:
    """Split a key into variable and slot: `parameters_0` and `Adam_1`, for example."""
    name, _, slot = key.partition("/")
    return name, slot


def _join(name: str, slot: str) -> str:
    return f"{name}/{slot}" if slot else name


def _saved(key: str) -> str:
    """The name in checkpoints of a variable that is neither a shard nor a slot.

    `counters/parameters_1/Adam/beta1_power` becomes `Adam/beta1_power`.
    """
    return key.split("/", 2)[2] if key.startswith(f"{COUNTERS}/") else key
