"""What the ps holds, by the names of checkpoints: a variable a parameter, not a stretch a ps.

So a run can go on with another number of ps. The optimizer's slots go by the parameter that they
belong to, `conv1/weights/Adam`. Parameters with a learning rate of their own have an optimizer of
their own, of the same kind and with the same counters, of which one set is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from a3c.layout import Layout
from a3c.optimizers import VALUE_SUFFIX

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
        elif key == _of_main(key):
            named[key] = value
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
        elif name not in shards and _of_main(key) in named:
            values[key] = named[_of_main(key)]
            left.pop(_of_main(key), None)
    if left:
        raise KeyError(min(left))
    return values


def _take_apart(key: str) -> tuple[str, str]:
    """The variable and the slot of it that a key names: `parameters_0` and `Adam_1`."""
    name, _, slot = key.partition("/")
    return name, _of_main(slot)


def _join(name: str, slot: str) -> str:
    return f"{name}/{slot}" if slot else name


def _of_main(name: str) -> str:
    """What corresponds to something of the value's optimizer: `Adam_1` to `AdamValue_1`."""
    return name.replace(VALUE_SUFFIX, "", 1)
