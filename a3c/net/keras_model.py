"""A Keras model as the network: its layers in our graph, with our variables.

Keras 3 holds its weights in eager variables, which a graph of TensorFlow 1 can't use. Its
`stateless_call` computes with given tensors instead: here with variables that begin with the
model's weights.
"""

import re
from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Space

from a3c.config import NetworkConfig
from a3c.net import layers
from a3c.net.distributions import for_space
from a3c.net.network import Network, NetworkOutput
from a3c.net.observations import prepared_shape


def network(
    model: Any, observation_space: Box, action_space: Space[Any], config: NetworkConfig
) -> Network:
    """The network of a model from prepared observations `[N, ...]` to two outputs.

    These are the policy's parameters `[N, P]` and the values `[N]` or `[N, 1]`. Layers behave as in
    `model(observations, training=False)`. Raises ValueError if the model can't be trained here.
    """
    outputs = model(np.zeros((1, *prepared_shape(observation_space)), np.float32))  # builds it
    if not isinstance(outputs, list | tuple) or len(outputs) != 2:
        raise ValueError("the model has not two outputs: give it the policy's and the value")
    frozen = [variable.path for variable in model.non_trainable_weights]
    if frozen:
        raise ValueError(f"{frozen[0]} does not train, and is not shared: leave its layer out")
    names = _names([variable.path for variable in model.trainable_variables])
    weights = [variable.numpy() for variable in model.trainable_variables]
    others = [variable.numpy() for variable in model.non_trainable_variables]  # seeds of Dropout
    policy = for_space(action_space, config)

    def forward(observations: Any, state: Any, _starts: Any) -> NetworkOutput:
        variables = [
            layers.variable(name, value.shape, tf.compat.v1.constant_initializer(value))
            for name, value in zip(names, weights, strict=True)
        ]
        rows = tf.reshape(observations, [-1, *observations.shape[2:]])  # [T * B, ...]
        constants = [tf.constant(value) for value in others]
        (parameters, values), _ = model.stateless_call(variables, constants, rows, training=False)
        steps = tf.shape(observations)[:2]
        parameters = tf.reshape(parameters, tf.concat([steps, [parameters.shape[-1]]], 0))
        return NetworkOutput(parameters, tf.reshape(values, steps), state)

    return Network(forward, policy, description=(model.name, "Keras", policy.describe()))


def _names(paths: list[str]) -> list[str]:
    """Names of weights, with unnamed layers and weights numbered within the model.

    Keras numbers them over the whole process, so the same model would get other names later. It
    lets two weights of a layer have the same name; ours differ.
    """
    known: dict[str, str] = {}
    layers: Counter[str] = Counter()
    weights: Counter[str] = Counter()

    def numbered(name: str, counts: Counter[str]) -> str:
        counts[name] += 1
        return f"{name}_{counts[name] - 1}" if counts[name] > 1 else name

    unnamed = re.compile(r"/variable(?:_(\d+))?$")
    numbers = sorted(int(found[1] or 0) for path in paths if (found := unnamed.search(path)))
    names = []
    for path in paths:
        layer, _, weight = path.rpartition("/")
        if layer not in known:
            known[layer] = numbered(re.sub(r"_\d+(?=/|$)", "", layer), layers)
        if found := unnamed.search(path):
            place = numbers.index(int(found[1] or 0))
            weight = f"variable_{place}" if place else "variable"
        names.append(numbered(f"{known[layer]}/{weight}", weights))
    return names
