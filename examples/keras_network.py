"""A Keras model as the network.

    python launch_cluster.py --env-id CartPole-v1 --network examples.keras_network:build

`build` may return any feed-forward Keras model with two outputs: the policy's parameters (for
Discrete actions the logits) and the value.
"""

from typing import Any

import keras
from gymnasium.spaces import Box, Space

from a3c.config import NetworkConfig
from a3c.net.distributions import for_space
from a3c.net.observations import prepared_shape


def build(observation_space: Box, action_space: Space[Any], config: NetworkConfig) -> keras.Model:
    """Two layers of 64 units, then the policy and the value."""
    keras.utils.set_random_seed(1)  # each run begins with the same weights
    num_parameters = for_space(action_space, config).num_parameters
    observations = keras.Input(prepared_shape(observation_space))
    x = keras.layers.Flatten()(observations)
    for _ in range(2):
        x = keras.layers.Dense(64, activation="tanh", kernel_initializer="orthogonal")(x)
    small = keras.initializers.Orthogonal(0.01)
    policy = keras.layers.Dense(num_parameters, kernel_initializer=small, name="policy")(x)
    value = keras.layers.Dense(1, name="value")(x)
    return keras.Model(observations, [policy, value])
