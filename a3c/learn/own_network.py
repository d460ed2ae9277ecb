"""Build a user's own network, or that of a Keras model; a mistake gives one line with a remedy."""

import dataclasses
import inspect
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Space

from a3c.config import Config, NetworkConfig, user_code
from a3c.config.options import check_minibatches
from a3c.config.user_code import kind_of
from a3c.errors import UserError
from a3c.learn import schedules
from a3c.learn.agent import Agent, Batch
from a3c.net import layers
from a3c.net.distributions import Policy, for_space
from a3c.net.network import Network, NetworkOutput
from a3c.net.observations import prepared_shape
from a3c.process.startup import start_eager_runtime

_STEPS, _ROWS = 3, 2  # T and B of the trial update: above 1, so that a broadcast is noticed


def build(
    place: str, observation_space: Box, action_space: Space[Any], config: NetworkConfig
) -> Network:
    """Build the network with the function at `package.module:function`; raises UserError."""
    subject = f"network {place}"
    function = user_code.find(place, subject)
    user_code.check_call(function, subject, "observation_space", "action_space", "config")
    if "keras" in sys.modules:  # Keras makes weights in the eager runtime
        start_eager_runtime()
    # The function may set a seed, as by `keras.utils.set_random_seed`: only weights depend on it.
    states = random.getstate(), np.random.get_state()
    with user_code.as_user_error(subject):
        network = function(observation_space, action_space, config)
        if hasattr(network, "stateless_call"):  # a Keras model
            network = of_keras(network, observation_space, action_space, config)
    random.setstate(states[0])
    np.random.set_state(states[1])
    remedy = "return a3c.net.network.Network(forward, policy) or a keras.Model"
    if not isinstance(network, Network):
        raise UserError(f"{subject} gave {kind_of(network)}: {remedy}")
    forward, policy, size = (getattr(network, n) for n in ("forward", "policy", "state_size"))
    if not callable(forward):
        raise UserError(f"{subject}: forward is {kind_of(forward)}: {remedy}")
    if not isinstance(policy, Policy):
        remedy = "take a3c.net.distributions.for_space(action_space, config)"
        raise UserError(f"{subject}: policy is {kind_of(policy)}: {remedy}")
    if type(size) is not int or size < 0:
        remedy = "give a whole number, 0 for a network without memory"
        raise UserError(f"{subject}: state_size is {size!r}: {remedy}")
    user_code.check_call(network.forward, subject, "observations", "state", "starts")
    return dataclasses.replace(network, forward=_checked(place, network))


def _checked(place: str, network: Network) -> Callable[[Any, Any, Any], NetworkOutput]:
    """The network's `forward`, with errors and wrong results turned into UserError."""

    def forward(observations: Any, state: Any, starts: Any) -> NetworkOutput:
        with user_code.as_user_error(f"network {place}"):
            output = network.forward(observations, state, starts)
        if not isinstance(output, NetworkOutput):
            raise UserError(
                f"network {place}: forward gave {kind_of(output)}: return "
                "a3c.net.network.NetworkOutput(policy_parameters, values, state)"
            )
        num_parameters, size = network.policy.num_parameters, network.state_size
        for name, shape, words in (
            ("policy_parameters", [None, None, num_parameters], f"[T, B, {num_parameters}]"),
            ("values", [None, None], "[T, B]"),
            ("state", [None, size], f"[B, {size}]"),
        ):
            tensor = getattr(output, name)
            there = kind_of(tensor)
            if isinstance(tensor, tf.Tensor):
                if tensor.dtype == tf.float32 and tensor.shape.is_compatible_with(shape):
                    continue
                there = f"{tensor.dtype.name} {tensor.shape}"
            raise UserError(
                f"network {place}: forward gave {name} as {there}: make it float32 {words}"
            )
        return output

    return forward


def check(network: Network, observation_space: Box, config: Config) -> Agent:
    """Act and learn once, because some mistakes appear only at run time. Raises UserError."""
    check_minibatches(config, recurrent=network.state_size > 0)
    with user_code.as_user_error(f"network {config.network.network}"):
        agent = Agent(network, observation_space, config, seed=0)
        _check_shapes(network, observation_space)
        size = (_STEPS, _ROWS, *(observation_space.shape or ()))
        observations = np.zeros(size, observation_space.dtype)
        state, starts = agent.initial_state(_ROWS), np.ones((_STEPS, _ROWS), bool)
        action = agent.act(observations[0], state, starts[0])
        rows = np.zeros((_STEPS, _ROWS), np.float32)
        samples = dict.fromkeys(Batch._fields, rows) | {
            "observations": observations,
            "actions": np.stack([action.actions] * _STEPS),
            "starts": starts,
            "state": state,
            "policy_parameters": np.stack([action.policy_parameters] * _STEPS),
        }
        agent.gradient(Batch(**samples), *schedules.after(config, 0).of_loss)
        return agent


def _check_shapes(network: Network, observation_space: Box) -> None:
    """Raise ValueError for an output with another T or B than the input: losses broadcast it."""
    zeros = np.zeros((_STEPS, _ROWS, *prepared_shape(observation_space)), np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        unknown = [None, None, *zeros.shape[2:]]  # T and B, as in training
        observations = tf.compat.v1.placeholder_with_default(zeros, unknown)
        state = tf.zeros([_ROWS, network.state_size])
        output = network.forward(observations, state, tf.ones([_STEPS, _ROWS], tf.bool))
        session.run(tf.compat.v1.global_variables_initializer())
        for name, value in session.run(output)._asdict().items():
            expected = [_ROWS] if name == "state" else [_STEPS, _ROWS]
            if list(value.shape[: len(expected)]) != expected:
                raise ValueError(
                    f"for {_STEPS} steps of {_ROWS} environments, {name} has shape "
                    f"{list(value.shape)} and not {[*expected, *value.shape[len(expected) :]]}"
                )


def of_keras(
    model: Any, observation_space: Box, action_space: Space[Any], config: NetworkConfig
) -> Network:
    """The network of a Keras model from prepared observations `[N, ...]` to two outputs.

    These are the policy's parameters `[N, P]` and the values `[N]` or `[N, 1]`. Layers behave as in
    `model(observations, training=False)`, but with variables of our graph, which can't use Keras's
    eager ones. Raises ValueError if the model can't be trained here.
    """
    outputs = model(np.zeros((1, *prepared_shape(observation_space)), np.float32))  # builds it
    if not isinstance(outputs, list | tuple) or len(outputs) != 2:
        raise ValueError("the model must have two outputs, the policy's and the value")
    if (shape := tuple(outputs[1].shape)) not in ((1,), (1, 1)):
        raise ValueError(f"for one observation the value has shape {shape}: make it (1, 1)")
    if frozen := [variable.path for variable in model.non_trainable_weights]:
        raise ValueError(f"{frozen[0]} does not train, and is not shared: leave its layer out")
    names = _names([variable.path for variable in model.trainable_variables])
    weights = [variable.numpy() for variable in model.trainable_variables]
    others = [variable.numpy() for variable in model.non_trainable_variables]  # seeds of Dropout
    policy = for_space(action_space, config)
    # A subclass's own `call` needs no argument `training`.
    has_modes = "training" in inspect.signature(model.call).parameters
    mode = {"training": False} if has_modes else {}

    def forward(observations: Any, state: Any, _starts: Any) -> NetworkOutput:
        variables = [
            layers.variable(name, value.shape, tf.compat.v1.constant_initializer(value))
            for name, value in zip(names, weights, strict=True)
        ]
        rows = tf.reshape(observations, [-1, *observations.shape[2:]])  # [T * B, ...]
        constants = [tf.constant(value) for value in others]
        (parameters, values), _ = model.stateless_call(variables, constants, rows, **mode)
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
    owners, weights = Counter[str](), Counter[str]()

    def numbered(name: str, counts: Counter[str]) -> str:
        counts[name] += 1
        return f"{name}_{counts[name] - 1}" if counts[name] > 1 else name

    unnamed = re.compile(r"/variable(?:_(\d+))?$")
    numbers = sorted(int(found[1] or 0) for path in paths if (found := unnamed.search(path)))
    names = []
    for path in paths:
        layer, _, weight = path.rpartition("/")
        if layer not in known:
            known[layer] = numbered(re.sub(r"_\d+(?=/|$)", "", layer), owners)
        if found := unnamed.search(path):
            place = numbers.index(int(found[1] or 0))
            weight = f"variable_{place}" if place else "variable"
        names.append(numbered(f"{known[layer]}/{weight}", weights))
    return names
