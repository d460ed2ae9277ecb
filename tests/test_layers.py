"""The layers against NumPy, and what they start from."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.net import layers
from tests import refused
from tests.graphs import run, slope, variables


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def unrolled_lstm(
    inputs: Any, state: Any, starts: Any, variables: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The LSTM as the textbook writes it, one environment and one step at a time, in float64."""
    weights, recurrent, biases = (
        variables[f"lstm/{name}"].astype(np.float64)
        for name in ("weights", "recurrent_weights", "biases")
    )
    units = len(recurrent)
    outputs = np.zeros((*inputs.shape[:2], units))
    last = np.zeros((inputs.shape[1], 2 * units))
    for b in range(inputs.shape[1]):
        c, h = state[b, :units].astype(np.float64), state[b, units:].astype(np.float64)
        for t in range(inputs.shape[0]):
            if starts[t, b]:
                c, h = np.zeros(units), np.zeros(units)
            i, f, g, o = np.split(inputs[t, b] @ weights + h @ recurrent + biases, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs[t, b] = h
        last[b] = np.concatenate([c, h])
    return outputs, last


ACTIVATIONS: dict[Any, Any] = {
    None: lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
}


@pytest.mark.parametrize(("activation", "reference"), ACTIVATIONS.items())
def test_dense_is_an_affine_map_and_its_activation(activation: Any, reference: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 3))

    def build() -> Any:
        inputs = tf.constant(x, tf.float32)
        dense = layers.dense(inputs, 5, "layer", activation=activation, initial_bias=0.5)
        return dense, variables()

    outputs, made = run(build)
    np.testing.assert_array_equal(made["layer/biases"], 0.5)
    expected = reference(x @ made["layer/weights"] + made["layer/biases"])
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_convolution_matches_the_slow_one_and_keeps_time_and_batch() -> None:
    width, kernel, stride = 8, 3, 2
    x = np.random.default_rng(0).normal(size=(2, 3, 9, width, 2))

    def build() -> Any:
        inputs = tf.constant(x, tf.float32)
        conv = layers.conv2d(inputs, 3, kernel, stride, "conv", initialization="paper")
        return conv, variables()

    outputs, made = run(build)
    weights, biases = made["conv/weights"], made["conv/biases"]
    assert weights.shape == (kernel, kernel, 2, 3)
    slow = np.zeros((2, 3, 4, 3, 3))
    for row, column in np.ndindex(4, 3):
        top, left = row * stride, column * stride
        patch = x[:, :, top : top + kernel, left : left + kernel]
        slow[:, :, row, column] = np.tensordot(patch, weights, 3) + biases
    np.testing.assert_allclose(outputs, np.maximum(slow, 0), atol=1e-5)


def test_an_unknown_activation_is_refused() -> None:
    said = "activation 'gelu' is unknown: give one of tanh, relu"
    refused(said, layers.dense, None, 1, "layer", activation="gelu")


@pytest.mark.parametrize("time", [None, 6])
def test_lstm_matches_a_numpy_unroll_with_resets(time: int | None) -> None:
    rng = np.random.default_rng(0)
    inputs, state = rng.normal(size=(6, 5, 3)), rng.normal(size=(5, 8))
    starts = rng.random((6, 5)) < 0.3
    starts[0, 1], starts[5, 1], starts[:3, 0] = True, True, [False, False, True]
    state[0] = np.nan  # even that is forgotten at a start

    def build() -> Any:
        steps = tf.compat.v1.placeholder_with_default(inputs.astype(np.float32), [time, None, 3])
        known, begins = tf.constant(state, tf.float32), tf.constant(starts)
        return layers.lstm(steps, known, begins, 4), variables()

    (outputs, last), made = run(build)
    expected_outputs, expected_last = unrolled_lstm(inputs, state, starts, made)
    np.testing.assert_allclose(outputs, expected_outputs, atol=1e-6)
    np.testing.assert_allclose(last, expected_last, atol=1e-6)


def test_lstm_gradients_match_finite_differences_of_the_numpy_unroll() -> None:
    rng = np.random.default_rng(2)
    inputs, state = rng.normal(size=(5, 2, 2)), rng.normal(size=(2, 6))
    starts = rng.random((5, 2)) < 0.3

    def build() -> Any:
        known = tf.constant(inputs, tf.float32), tf.constant(state, tf.float32)
        outputs, last = layers.lstm(*known, tf.constant(starts), 3)
        loss, made = tf.reduce_sum(outputs**2) + tf.reduce_sum(last), variables()
        return made, dict(zip(made, tf.gradients(loss, [*made.values()]), strict=True))

    made, gradients = run(build)
    made = {k: v.astype(np.float64) for k, v in made.items()}

    def loss() -> float:
        outputs, last = unrolled_lstm(inputs, state, starts, made)
        return float((outputs**2).sum() + last.sum())

    for name, value in made.items():
        for index in rng.choice(value.size, 6, replace=False):
            place = np.unravel_index(index, value.shape)
            expected = slope(loss, value, place)
            assert gradients[name][place] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def initial_variables(initialization: layers.Initialization) -> dict[str, np.ndarray]:
    chosen: Any = {"initialization": initialization}

    def build() -> Any:
        x = layers.conv2d(tf.zeros([1, 1, 9, 9, 4]), 8, 5, 2, "conv1", **chosen)
        x = layers.dense(layers.flatten(x), 16, "dense", gain=math.sqrt(2), **chosen)
        layers.lstm(x, tf.zeros([1, 24]), tf.zeros([1, 1]), 12, **chosen)
        return variables()

    return run(build)


def test_orthogonal_weights_are_orthogonal_times_their_gain() -> None:
    made = initial_variables("orthogonal")
    for weights in (made["conv1/weights"].reshape(100, 8), made["dense/weights"]):
        np.testing.assert_allclose(weights.T @ weights, 2 * np.eye(weights.shape[1]), atol=1e-5)
    for name in ("lstm/recurrent_weights", "lstm/weights"):
        for gate in np.split(made[name], 4, axis=1):
            np.testing.assert_allclose(gate.T @ gate, np.eye(12), atol=1e-5)
    np.testing.assert_array_equal(made["conv1/biases"], 0)
    np.testing.assert_array_equal(made["lstm/biases"], np.repeat([0.0, 1.0, 0.0, 0.0], 12))


def test_paper_weights_and_biases_fill_their_range_evenly() -> None:
    made = initial_variables("paper")
    bounds = {"conv1": 100**-0.5, "dense": 72**-0.5, "lstm": 12**-0.5}
    assert set(made) == {
        *(f"{layer}/{name}" for layer in bounds for name in ("weights", "biases")),
        "lstm/recurrent_weights",
    }
    made["lstm/biases"] -= np.repeat(np.array([0, 1, 0, 0], np.float32), 12)
    for name, value in made.items():
        bound = bounds[name.split("/")[0]]
        assert np.abs(value).max() <= bound * (1 + 1e-6)
        if value.size > 100:
            assert np.abs(value).max() > 0.95 * bound
            assert value.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert np.ptp(value) > 0.5 * bound


def test_records_list_layers_in_order_with_their_scopes_and_tells_namesakes_apart() -> None:
    with tf.Graph().as_default():
        with tf.compat.v1.variable_scope("trunk"):
            x = layers.conv2d(tf.zeros([1, 1, 8, 8, 1]), 2, 4, 2, "conv1")
            layers.flatten(x)
            x = layers.dense(layers.flatten(x), 5, "dense", activation="tanh")
        layers.add(x, x, "both")
        records = tf.compat.v1.get_collection(layers.RECORDS)
    assert [record[:3] for record in records] == [
        ("trunk/conv1", "conv 4x4/2, ReLU", (3, 3, 2)),
        ("trunk/flatten", "flatten", (18,)),
        ("trunk/flatten_2", "flatten", (18,)),
        ("trunk/dense", "dense, tanh", (5,)),
        ("both", "sum", (5,)),
    ]
