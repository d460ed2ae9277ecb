"""The peers, and the settings to try for each."""

from __future__ import annotations

import os
from itertools import product
from typing import Any, NamedTuple

Settings = dict[str, Any]

OURS = "a3c-cluster"


class Peer(NamedTuple):
    """Another program for the same task.

    The search tries every setting of `grid`, then applies each of `variations` to the best so far,
    until this gives no new settings.
    """

    name: str  # also the name of its virtual environment and its file of versions
    program: str  # in programs/
    grid: tuple[Settings, ...]
    variations: tuple[Settings, ...] = ()


def _grid(**values: tuple[Any, ...]) -> tuple[Settings, ...]:
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


_APPO = {
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "rollout": 20,
    "batch_size": 320,
}

PEERS = (
    Peer(
        OURS,
        "",  # started by the launcher
        _grid(envs_per_worker=(16, 32, 64), rollout_length=(20,), workers=(os.cpu_count() or 1,)),
        ({"rollout_length": 40}, {"wire_dtype": "float16"}, {"compute_dtype": "bfloat16"}),
    ),
    Peer(
        "sb3",
        "sb3_a2c",
        _grid(envs=(16, 8, 32), steps=(20, 5, 40), threads=(2,), vec_env=("subproc",)),
        ({"threads": 1}, {"vec_env": "dummy"}, {"envs": 64}),
    ),
    Peer(
        "sample-factory",
        "sample_factory_appo",
        (
            {**_APPO, "async_rl": True},
            {**_APPO, "async_rl": False},
            {**_APPO, "async_rl": True, "serial_mode": True},
        ),
        (
            {"num_envs_per_worker": 16, "batch_size": 640},
            {"num_envs_per_worker": 32, "batch_size": 1280},
            {"num_workers": 1},
            {"rollout": 40, "batch_size": 1280},
            {"worker_num_splits": 1},
        ),
    ),
    Peer(
        "cleanrl",
        "cleanrl_ppo",
        _grid(envs=(16, 8, 32), steps=(20,), threads=(2,), vec_env=("envpool",)),
        ({"vec_env": "sync"}, {"threads": 1}, {"steps": 5}, {"steps": 128}, {"envs": 64}),
    ),
    Peer("pytorch-a3c", "pytorch_a3c", _grid(processes=(2, 4), steps=(20,))),
    Peer(
        "rllib",
        "rllib_impala",
        _grid(runners=(1, 2), envs=(8,), steps=(20,), batch=(320,)),
        ({"envs": 16, "batch": 640}, {"envs": 32, "batch": 1280}, {"steps": 50}),
    ),
)


def named(names: list[str] | None) -> tuple[Peer, ...]:
    """The peers of these names, or all."""
    return tuple(peer for peer in PEERS if not names or peer.name in names)
