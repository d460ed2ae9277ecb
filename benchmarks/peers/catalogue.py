"""The peers, each with the settings at which it is fastest on two cores.

benchmarks/results/peers-search.csv has all settings that were tried.
"""

from typing import Any, NamedTuple

Settings = dict[str, Any]

OURS = "a3c-cluster"


class Peer(NamedTuple):
    """Another program for the same task."""

    name: str  # also the name of its virtual environment and its file of versions
    program: str  # in programs/; ours is started by the launcher
    settings: Settings


PEERS = (
    Peer(
        OURS,
        "",
        {"envs_per_worker": 64, "rollout_length": 20, "workers": 2},
    ),
    Peer("sb3", "sb3_a2c", {"envs": 64, "steps": 5, "threads": 2, "vec_env": "subproc"}),
    Peer(
        "sample-factory",
        "sample_factory_appo",
        {
            "num_workers": 2,
            "num_envs_per_worker": 32,
            "worker_num_splits": 2,
            "rollout": 20,
            "batch_size": 1280,
            "async_rl": True,
        },
    ),
    Peer("cleanrl", "cleanrl_ppo", {"envs": 64, "steps": 5, "threads": 2, "vec_env": "envpool"}),
    Peer("pytorch-a3c", "pytorch_a3c", {"processes": 2, "steps": 20}),
    Peer("rllib", "rllib_impala", {"runners": 2, "envs": 16, "steps": 20, "batch": 320}),
)
