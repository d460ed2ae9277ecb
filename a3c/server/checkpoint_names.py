"""What the ps holds, by the names of checkpoints: a variable a parameter, not a stretch a ps.

So a run can go on with another number of ps. The optimizer's slots go by the parameter that they
belong to, `conv1/weights/Adam`. Each stretch has counters of its own, of which one set is saved:
they count the same pushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from a3c.server.layout import Layout
from a3c.server.optimizers import COUNTERS

Values = dict[str, np.ndarray]


def by_parameter(held: Mapping[str, np.ndarray], layout: Layout) -> Values:
    """Values by the names of the ps's variables, as values by the names of checkpoints."""
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
    """The other way round: what `named` gives for those of the ps's variables that `keys` names.

    Raises KeyError where only a part of a vector is given, or something that the ps doesn't have.
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
    """The variable and the slot of it that a key names: `parameters_0` and `Adam_1`."""
    name, _, slot = key.partition("/")
    return name, slot


def _join(name: str, slot: str) -> str:
    return f"{name}/{slot}" if slot else name


def _saved(key: str) -> str:
    """What a variable that is no stretch and no slot is called in checkpoints.

    `counters/parameters_1/Adam/beta1_power` is `Adam/beta1_power`.
    """
    return key.split("/", 2)[2] if key.startswith(f"{COUNTERS}/") else key
