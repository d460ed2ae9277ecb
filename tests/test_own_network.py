"""A mistake in a user's own network gives one line, with its file and line, before a run starts.

A Keras model acts and learns as in Keras, and its weights have the same names in every process.
"""

import random
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import model
from a3c.learn import own_network, schedules
from a3c.learn.agent import Agent
from examples import keras_network
from tests import Patch, refused
from tests.clusters import batch_of, flat, small_config

SPACE, ACTIONS = Box(-1.0, 1.0, (3,)), Discrete(2)
IMAGES = Box(0, 255, (4, 20, 20), np.uint8)
CONFIG = small_config(network="examples.keras_network:build", max_gradient_norm=0.0)
WHOLE = """\
from a3c.net import layers
from a3c.net.distributions import for_space
from a3c.net.network import Network, NetworkOutput
import tensorflow as tf

def build(observation_space, action_space, config):
    policy = for_space(action_space, config)

    def forward(observations, state, starts):
        x = layers.dense(layers.flatten(observations), 4, "hidden")
        values = layers.dense(x, 1, "value")[..., 0]
        return NetworkOutput(policy.head(x), values, state)

    return Network(forward, policy)
"""
DEF, RETURN, OUTPUT, HIDDEN = (
    "def build(observation_space, action_space, config):",
    "return Network(forward, policy)",
    "return NetworkOutput(policy.head(x), values, state)",
    'layers.dense(layers.flatten(observations), 4, "hidden")',
)


@pytest.fixture(autouse=True)
def own_code(here: Path, monkeypatch: Patch) -> None:
    """What is imported from the current folder is forgotten."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def check(source: str, **settings: Any) -> None:
    """Build and run a network, as a worker does first."""
    Path("mine.py").write_text(source)
    config = small_config(network="mine:build", **settings)
    own_network.check(model.build(SPACE, ACTIONS, config.network), SPACE, config)


def test_a_correct_network_is_accepted_recurrent_or_not() -> None:
    check(WHOLE)
    sys.modules.pop("mine")
    remembers = WHOLE.replace("Network(forward, policy)", "Network(forward, policy, 1)")
    said = "minibatches 3 is more than envs_per_worker 2"
    refused(said, check, remembers, minibatches=3, envs_per_worker=2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (DEF, "def build(:", "failed: mine.py:6: SyntaxError: invalid syntax; fix it"),
        ("import tensorflow as tf", "1 / 0", "mine.py:4: ZeroDivisionError: division by zero"),
        ("import tensorflow as tf", "import nowhere", "mine.py:4: ModuleNotFoundError: No module"),
        ("import tensorflow as tf", "exit(3)", "mine.py:4: SystemExit: 3; fix it"),
        (DEF, "def built(*_):", "mine has no build; give package.module:function"),
        (DEF, "build = 3\ndef built(*_):", "build is an object of type int and no function"),
        (DEF, "def build(space):", "it takes (space) and is called with observation_space, "),
        ("policy = for", "policy = far", "mine.py:7: NameError: name 'far_space' is not defined"),
        (RETURN, "pass", "gave None: return a3c.net.network.Network(forward, policy)"),
        (RETURN, "return Network(policy, forward)", "forward is an object of type Categorical"),
        (RETURN, "return Network(forward, None)", "policy is None: take a3c.net.distributions.for"),
        (RETURN, "return Network(forward, policy, -1)", "state_size is -1: give a whole number"),
        ("(observations, state, starts)", "(x)", "it takes (x) and is called with observations, "),
        (DEF, DEF + "\n    return Network(1, None)", "forward is an object of type in"),
        ('4, "hidden"', '"four", "hidden"', "mine.py:10: "),
        (OUTPUT, "return x", "forward gave an object of type "),
        (OUTPUT, "return NetworkOutput(x, values, state)", "policy_parameters as float32 "),
        ("[..., 0]", "", "gave values as float32 (1, None, 1): make it float32 [T, B]"),
        ("values, state)", "values, None)", "gave state as None: make it float32 [B, 0]"),
        ("values, state)", "values[:, :1], state)", "values has shape [3, 1] and not [3, 2]"),
        ("values, state)", "values[:1], state)", "values has shape [1, 2] and not [3, 2]"),
        ("head(x)", "head(x)[:1]", "policy_parameters has shape [1, 2, 2] and not [3, 2, 2]"),
        (
            HIDDEN,
            "layers.flatten(observations) * tf.compat.v1.Variable(1.0, name='w')",
            "makes new variables (network_1/w) at its second call: make them with tf.compat.v1.",
        ),
        (
            HIDDEN,
            HIDDEN + " * tf.compat.v1.get_variable('w', [], trainable=False)",
            ": w does not train, and is not shared: leave it out",
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_where_and_what(old: str, new: str, said: str) -> None:
    assert WHOLE.count(old) == 1
    refused(rf"^network mine:build.*{re.escape(said)}", check, WHOLE.replace(old, new))


def check_keras() -> Agent:
    return own_network.check(model.build(SPACE, ACTIONS, CONFIG.network), SPACE, CONFIG)


def test_a_seed_for_keras_leaves_the_environments_their_noise() -> None:
    before, numpys = random.getstate(), np.random.get_state(legacy=False)
    model.build(SPACE, ACTIONS, CONFIG.network)
    assert random.getstate() == before
    np.testing.assert_equal(np.random.get_state(legacy=False), numpys)


def test_a_model_acts_and_learns_as_in_keras() -> None:
    agent = check_keras()
    theirs = keras_network.build(SPACE, ACTIONS, CONFIG.network)
    seen = np.random.default_rng(0).normal(size=(5, 3, 3)).astype(np.float32)
    rows = seen.reshape(15, 3)
    logits, values = (np.asarray(output) for output in theirs(rows))
    nothing = np.zeros((15, 0), np.float32), np.zeros(15, bool)
    action = agent.act(rows, *nothing)
    np.testing.assert_allclose(action.policy_parameters, logits, rtol=1e-5)
    np.testing.assert_allclose(action.values, values[:, 0], rtol=1e-5)
    shapes = [tuple(weight.shape) for weight in theirs.trainable_weights]
    assert list(agent.shapes.values()) == shapes
    # The gradient of the value loss alone is (V - R) times the last layer's inputs.
    batch = batch_of(agent, seen, returns=np.ones((5, 3), np.float32))
    gradient = agent.gradient(batch, 0.0, 0.0).flat
    hidden = keras.Model(theirs.inputs[0], theirs.get_layer("value").input)
    errors = values[:, 0] - 1.0
    expected = 0.5 * np.append(np.asarray(hidden(rows)).T @ errors, errors.sum()) / 15
    np.testing.assert_allclose(gradient[-65:], expected, rtol=1e-4, atol=1e-6)


class Usual(keras.Model):
    """A subclass whose `call` takes the inputs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.logits = keras.layers.Dense(8), keras.layers.Dense(2)
        self.value, self.some = keras.layers.Dense(1), keras.layers.Dropout(0.9)

    def call(self, inputs: Any) -> Any:
        x = self.some(self.hidden(inputs))
        return self.logits(x), self.value(x)


def test_a_model_without_an_argument_training_acts_as_if_it_were_false() -> None:
    network = own_network.of_keras(Usual(), SPACE, ACTIONS, CONFIG.network)
    agent = own_network.check(network, SPACE, CONFIG)
    rows, nothing = np.ones((4, 3), np.float32), (np.zeros((4, 0), np.float32), np.zeros(4, bool))
    first, second = (agent.act(rows, *nothing).values for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.ptp(first) == 0.0, "no unit of any row is dropped"


def test_a_network_is_tried_with_the_loss_of_its_settings() -> None:
    """So a new argument of `Agent.gradient` needs no change in the check."""
    config = small_config(network="mlp", entropy_weight=0.3, ratio_limit=0.2)
    network = model.build(SPACE, ACTIONS, config.network)
    with mock.patch.object(Agent, "gradient") as gradient:
        own_network.check(network, SPACE, config)
    assert gradient.call_args.args[1:] == schedules.after(config, 0).of_loss == (0.3, 0.2)


def test_names_of_weights_do_not_depend_on_earlier_models() -> None:
    """Of convolutions, a normalisation, and layers without names."""
    agents = []
    for _ in range(2):
        pixels = keras.Input((20, 20, 4))
        x = keras.layers.Conv2D(4, 4, 2, activation="relu")(pixels)
        x = keras.layers.Conv2D(4, 3, 2, activation="relu")(x)
        x = keras.layers.Dropout(0.5)(keras.layers.LayerNormalization()(x))
        x = keras.layers.Flatten()(x)
        images = keras.Model(pixels, [keras.layers.Dense(2)(x), keras.layers.Dense(1)(x)])
        network = own_network.of_keras(images, IMAGES, ACTIONS, CONFIG.network)
        agents.append(Agent(network, IMAGES, CONFIG, seed=1))
    assert list(agents[0].shapes) == list(agents[1].shapes)
    assert {"conv2d/kernel", "conv2d_1/kernel", "dense_1/bias"} <= set(agents[0].shapes)
    agents[1].load(flat(agents[0]), np.zeros(0))
    frames = np.random.default_rng(0).integers(0, 255, (3, 4, 20, 20), dtype=np.uint8)
    given = frames, np.zeros((3, 0), np.float32), np.zeros(3, bool)
    one, other = (agent.act(*given).policy_parameters for agent in agents)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ([2], "the model must have two outputs, the policy's and the value; fix it"),
        ([3, 1], "forward gave policy_parameters as float32 "),
        ([2, 2], "for one observation the value has shape (1, 2): make it (1, 1); fix it"),
        ("frozen", "batch_normalization/moving_mean does not train, and is not shared: leave"),
        ("narrow", "incompatible with"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(last: Any, said: str, monkeypatch: Patch) -> None:
    def build(*_: Any) -> Any:
        keras.backend.clear_session()
        x = inputs = keras.Input((2,) if last == "narrow" else (3,))
        if last == "frozen":
            x = keras.layers.BatchNormalization()(x)
        sizes = [2, 1] if isinstance(last, str) else last
        return keras.Model(inputs, [keras.layers.Dense(size)(x) for size in sizes])

    monkeypatch.setattr(keras_network, "build", build)
    refused(f"^network examples.keras_network:build.*{re.escape(said)}", check_keras)


class Affine(keras.layers.Layer):
    """A layer with two weights without names, and two of the same name."""

    def build(self, _shape: Any) -> None:
        self.own = [self.add_weight(shape=(3,)) for _ in range(2)]
        self.own += [self.add_weight(shape=(3,), name="w") for _ in range(2)]

    def call(self, x: Any) -> Any:
        return x * self.own[0] + self.own[1] * self.own[2] - self.own[3]


def test_weights_without_names_of_their_own_are_numbered_within_the_model() -> None:
    named = []
    for _ in range(2):
        pixels = keras.Input((3,))
        value, policy = Affine()(pixels), Affine()(pixels)  # made in this order
        outputs = [keras.layers.Dense(size)(x) for size, x in ((2, policy), (1, value))]
        made = own_network.of_keras(keras.Model(pixels, outputs), SPACE, ACTIONS, CONFIG.network)
        named.append(list(Agent(made, SPACE, CONFIG, seed=1).shapes))
    assert named[0] == named[1]
    assert len(set(named[0])) == 12
    ends = [name.partition("/")[2] for name in named[0][:8]]
    assert ends == ["variable_2", "variable_3", "w", "w_1", "variable", "variable_1", "w", "w_1"]
