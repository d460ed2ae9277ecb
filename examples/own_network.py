# ruff: noqa: ARG001 - the signatures are fixed, and this network needs no more of them
"""A custom network: a small residual MLP.

Any function with the signature of `build` can be the network:

    python launch_cluster.py --env-id CartPole-v1 --network examples.own_network:build
"""

from typing import Any

from gymnasium.spaces import Box, Space

from a3c.config import NetworkConfig
from a3c.net import layers
from a3c.net.distributions import for_space
from a3c.net.network import Network, NetworkOutput


def build(observation_space: Box, action_space: Space[Any], config: NetworkConfig) -> Network:
    """Two residual blocks of 64 units, then the policy head and the value head."""
    policy = for_space(action_space, config)

    def forward(observations: Any, state: Any, starts: Any) -> NetworkOutput:
        x = layers.dense(layers.flatten(observations), 64, "input", activation="relu")
        for block in ("block1", "block2"):
            y = layers.dense(x, 64, f"{block}_in", activation="relu")
            x = layers.add(x, layers.dense(y, 64, f"{block}_out", gain=0.1), block)
        parameters = policy.head(x)  # [T, B, P]
        values = layers.dense(x, 1, "value", gain=layers.VALUE_GAIN)[..., 0]  # [T, B]
        return NetworkOutput(parameters, values, state)

    return Network(forward, policy)
