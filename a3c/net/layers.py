"""Layers for TensorFlow graphs, built on `tf.nn` and `get_variable`.

Each layer makes its variables in a scope of its name (`conv1/weights`), so two calls of a network
under `AUTO_REUSE` share them. Tensors keep their leading `[T, B]` axes throughout.

There are two kinds of initial values. `orthogonal`: orthogonal weights times a gain, biases zero
(Saxe et al. 2014, as in OpenAI's baselines). `paper`: weights and biases uniform within
±1/sqrt(fan-in), the default of Torch, in which DeepMind's networks for Atari were written.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from a3c.errors import UserError
from a3c.net.observations import reshape

Initialization = Literal["orthogonal", "paper"]
Activation = Literal["tanh", "relu", "elu"]

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
RECORDS = "a3c_layers"  # the graph's collection of its layers

_LABELS = {"tanh": "tanh", "relu": "ReLU", "elu": "ELU"}  # of activations, by name in tf.nn


def _activation(name: str | None) -> tuple[Callable[[Any], Any], str]:
    """The function of an activation, and what it adds to the description of its layer."""
    if name is None:
        return lambda x: x, ""
    if name not in _LABELS:
        known = ", ".join(_LABELS)
        raise UserError(f"activation {name!r} is unknown: give one of {known}, or None")
    return getattr(tf.nn, name), f", {_LABELS[name]}"


class Record(NamedTuple):
    name: str  # the variable scope
    kind: str
    output_shape: tuple[int, ...]  # without [T, B]
    inputs: tuple[Any, ...]
    output: Any


def record(name: str, kind: str, output_shape: tuple[int, ...], inputs: Any, output: Any) -> Any:
    """Add a layer to its graph's `RECORDS`, and return its output.

    `name` is relative to the current variable scope; a repeated one, for example of a layer that is
    used twice, gets a number.
    """
    scope = tf.compat.v1.get_variable_scope().name
    full_name = unique_name = f"{scope}/{name}" if scope else name
    taken = {earlier.name for earlier in tf.compat.v1.get_collection(RECORDS)}
    number = 1
    while unique_name in taken:
        number += 1
        unique_name = f"{full_name}_{number}"
    made = Record(unique_name, kind, output_shape, tuple(inputs), output)
    tf.compat.v1.add_to_collection(RECORDS, made)
    return output


def dense(
    inputs: Any,
    units: int,
    name: str,
    *,
    activation: Activation | None = None,
    gain: float = HIDDEN_GAIN,
    initialization: Initialization = "orthogonal",
    initial_bias: float | None = None,
) -> Any:
    """A fully connected layer, `[..., features]` to `[..., units]`."""
    activate, label = _activation(activation)
    features = inputs.shape[-1]
    weights_start, biases_start = initial_values(initialization, gain, features)
    if initial_bias is not None:
        biases_start = tf.compat.v1.constant_initializer(initial_bias)
    with tf.compat.v1.variable_scope(name):
        weights = variable("weights", [features, units], weights_start)
        biases = variable("biases", [units], biases_start)
        rows = activate(tf.matmul(_rows(inputs, 1), weights) + biases)
        outputs = reshape(rows, inputs, -1, [units])
    return record(name, f"dense{label}", (units,), [inputs], outputs)


def conv2d(
    inputs: Any,
    filters: int,
    kernel: int,
    stride: int,
    name: str,
    *,
    activation: Activation | None = "relu",
    padding: Literal["VALID", "SAME"] = "VALID",
    initialization: Initialization = "orthogonal",
) -> Any:
    """A convolution with a square kernel over channels-last images with any leading axes."""
    activate, label = _activation(activation)
    height, width, channels = inputs.shape[-3:].as_list()
    if padding == "VALID" and min(height, width) < kernel:
        raise UserError(
            f"layer {name}: a {kernel}x{kernel} kernel does not fit into {height}x{width} pixels: "
            "give larger images or another network"
        )
    fan_in = kernel * kernel * channels
    weights_start, biases_start = initial_values(initialization, HIDDEN_GAIN, fan_in)
    with tf.compat.v1.variable_scope(name):
        weights = variable("weights", [kernel, kernel, channels, filters], weights_start)
        biases = variable("biases", [filters], biases_start)
        images = tf.nn.conv2d(_rows(inputs, 3), weights, stride, padding)
        images = activate(tf.nn.bias_add(images, biases))
        outputs = reshape(images, inputs, -3, images.shape[1:])
    kind = f"conv {kernel}x{kernel}" + (f"/{stride}" if stride > 1 else "") + label
    return record(name, kind, tuple(images.shape[1:].as_list()), [inputs], outputs)


def flatten(inputs: Any, vector: Any = None, name: str = "flatten") -> Any:
    """Join all axes after `[T, B]`, with a vector `[T, B, V]` after them; vectors are unchanged."""
    if inputs.shape.rank == 3:
        return inputs
    features = math.prod(inputs.shape[2:].as_list())
    rows = tf.reshape(_rows(inputs, inputs.shape.rank - 2), [-1, features])
    outputs = reshape(rows, inputs, 2, [features])
    if vector is not None:
        outputs = tf.concat([outputs, vector], axis=-1)
    sources = [inputs] if vector is None else [inputs, vector]
    return record(name, "flatten", (outputs.shape[-1],), sources, outputs)


def add(left: Any, right: Any, name: str) -> Any:
    """The sum of two tensors, shown as a separate layer in tables and diagrams."""
    outputs = left + right
    return record(name, "sum", tuple(outputs.shape[2:].as_list()), [left, right], outputs)


def lstm(
    inputs: Any,
    state: Any,
    starts: Any,
    units: int,
    name: str = "lstm",
    *,
    initialization: Initialization = "orthogonal",
) -> tuple[Any, Any]:
    """An LSTM over time, `[T, B, features]` to `[T, B, units]` and the state after the last step.

    `state` is `[B, 2 * units]`, the cell and the output concatenated; it is reset to zero before a
    step whose `starts` `[T, B]` is true. Gates are in the order input, forget, candidate, output,
    and the forget gates' biases start at 1 (Jozefowicz et al. 2015). A static T of 1, as in acting,
    needs no loop. Any other T uses TensorFlow's loop, which is as fast as an unrolled graph.
    """
    # Torch's LSTM uses the number of units as the fan-in of all its weights.
    weights_start, biases_start = initial_values(initialization, 1.0, units)

    def each_gate(shape: Any, dtype: Any) -> Any:
        rows, columns = shape
        gates = [weights_start([rows, columns // 4], dtype) for _ in range(4)]
        return tf.concat(gates, axis=1)

    def open_forget_gates(shape: Any, dtype: Any) -> Any:
        forget = tf.repeat(tf.constant([0.0, 1.0, 0.0, 0.0], dtype), units)
        return biases_start(shape, dtype) + forget

    with tf.compat.v1.variable_scope(name):
        weights = variable("weights", [inputs.shape[-1], 4 * units], each_gate)
        recurrent = variable("recurrent_weights", [units, 4 * units], each_gate)
        biases = variable("biases", [4 * units], open_forget_gates)
        # One product for all steps: only the recurrent product depends on the previous step.
        rows = tf.matmul(_rows(inputs, 1), weights) + biases
        projected = reshape(rows, inputs, -1, [4 * units])  # [T, B, 4 * units]
        starts = tf.cast(starts, tf.bool)[..., None]  # [T, B, 1]

        # Hochreiter and Schmidhuber 1997; Gers et al. 2000.
        def step(carry: Any, now: Any) -> tuple[Any, Any]:
            projected, starts = now
            cell, output = (tf.where(starts, 0.0, part) for part in carry)  # [B, units]
            gates = projected + tf.matmul(output, recurrent)  # [B, 4 * units]
            input_gate, forget_gate, candidate, output_gate = tf.split(gates, 4, axis=1)
            cell = tf.sigmoid(forget_gate) * cell + tf.sigmoid(input_gate) * tf.tanh(candidate)
            return cell, tf.sigmoid(output_gate) * tf.tanh(cell)

        carry = tuple(tf.split(state, 2, axis=1))
        if projected.shape[0] == 1:
            cell, output = step(carry, (projected[0], starts[0]))
            outputs = output[None]
        else:
            cells, outputs = tf.scan(step, (projected, starts), initializer=carry)  # [T, B, units]
            cell, output = cells[-1], outputs[-1]
        last_state = tf.concat([cell, output], axis=1)
    record(name, "LSTM", (units,), [inputs], outputs)
    return outputs, last_state


def variable(name: str, shape: Sequence[int], initializer: Any) -> Any:
    return tf.compat.v1.get_variable(name, shape, tf.float32, initializer, use_resource=True)


def initial_values(kind: Initialization, gain: float, fan_in: int) -> tuple[Any, Any]:
    if kind == "paper":
        bound = 1.0 / math.sqrt(fan_in)
        uniform = tf.compat.v1.random_uniform_initializer(-bound, bound)
        return uniform, uniform
    return tf.compat.v1.orthogonal_initializer(gain), tf.compat.v1.zeros_initializer()


def _rows(inputs: Any, kept: int) -> Any:
    """Join all but the last `kept` axes."""
    return tf.reshape(inputs, [-1, *inputs.shape[-kept:].as_list()])
