"""Every network by name: shapes, parameters, sharing, recurrence, and what is refused."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import model
from a3c.config import NetworkConfig, user_code
from a3c.config.options import OPTIONS
from a3c.net.network import Network, NetworkOutput
from a3c.plot import diagram
from a3c.server.optimizers import is_value_only
from tests import ended, refused
from tests.runs import call_script

ATARI = Box(0.0, 1.0, (84, 84, 4), np.float32)
SMALL = Box(0.0, 1.0, (36, 36, 1), np.float32)
VECTOR = Box(-1.0, 1.0, (4,), np.float32)
BOX = Box(-1.0, 1.0, (2,), np.float32)
ACTIONS = {
    "discrete": (Discrete(3), {}),
    "multi-discrete": (MultiDiscrete([2, 3]), {}),
    "clipped": (BOX, {"action_bounds": "clip"}),
    "squashed": (BOX, {"action_bounds": "squash"}),
    "state-dependent": (BOX, {"gaussian_deviation": "state-dependent"}),
}
TINY = NetworkConfig(hidden_sizes=(5, 6), lstm_size=3)


def build(space: Box, actions: Any, **settings: Any) -> Network:
    return model.build(space, actions, dataclasses.replace(TINY, **settings))


class Running:
    """A network in a session of its own."""

    def __init__(self, network: Network, space: Box) -> None:
        self.network = network
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.compat.v1.set_random_seed(1)
            self.inputs = (
                tf.compat.v1.placeholder(tf.float32, [None, None, *space.shape]),
                tf.compat.v1.placeholder(tf.float32, [None, network.state_size]),
                tf.compat.v1.placeholder(tf.bool, [None, None]),
            )
            self.output = network.forward(*self.inputs)
            self.samples = network.policy.sample(self.output.policy_parameters)
            self.variables = tf.compat.v1.trainable_variables()

    @functools.cached_property
    def session(self) -> Any:
        with self.graph.as_default():
            session = tf.compat.v1.Session()
            session.run(tf.compat.v1.global_variables_initializer())
        return session

    def run(self, fetches: Any, *inputs: np.ndarray) -> Any:
        return self.session.run(fetches, dict(zip(self.inputs, inputs, strict=True)))

    def __call__(self, *inputs: np.ndarray) -> NetworkOutput:
        return self.run(self.output, *inputs)

    def names(self) -> list[str]:
        return [variable.op.name for variable in self.variables]

    def reached_by(self, output: Any) -> set[str]:
        """Names of the variables that an output has a gradient with respect to."""
        with self.graph.as_default():
            gradients = tf.gradients(output, self.variables)
        pairs = zip(self.names(), gradients, strict=True)
        return {name for name, gradient in pairs if gradient is not None}


def rollout(space: Box, state_size: int, time: int = 2, batch: int = 3) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    starts = rng.random((time, batch)) < 0.3
    return (
        rng.uniform(size=(time, batch, *space.shape)),
        rng.normal(size=(batch, state_size)),
        starts,
    )


def test_parameter_counts_are_those_worked_out_by_hand() -> None:
    for space, actions, network, parameters in (
        # (8·8·4+1)·16 + (4·4·16+1)·32 + (9·9·32+1)·256 + (256+1)·(6+1)
        (ATARI, 6, "a3c-ff", 677_943),
        # ... + 4·(256·(256+256) + 256)
        (ATARI, 6, "a3c-lstm", 677_943 + 525_312),
        # (8·8·4+1)·32 + (4·4·32+1)·64 + (3·3·64+1)·64 + (7·7·64+1)·512 + (512+1)·7
        (ATARI, 6, "nature", 1_687_719),
        # 4 convolutions: 9·1·32+32 + 3·(9·32·32+32); 3·3·32 to LSTM 256; heads
        (Box(0.0, 1.0, (42, 42, 1), np.float32), 6, "universe", 28_064 + 558_080 + 1_799),
        # (4+1)·64 + (64+1)·64 + (64+1)·(2+1)
        (VECTOR, 2, "mlp", 4_675),
        # ... LSTM 256 on 64: 4·(256·(64+256) + 256); heads (256+1)·3
        (VECTOR, 2, "mlp-lstm", 4_480 + 328_704 + 771),
        # Images are flattened.
        (SMALL, 2, "mlp", (36 * 36 + 1) * 64 + 65 * 64 + 65 * 3),
    ):
        built = model.build(space, Discrete(actions), NetworkConfig(network=network))
        assert diagram.total_parameters(diagram.layer_table(built, space)) == parameters


def test_every_network_of_the_configuration_is_there() -> None:
    assert set(OPTIONS["network"].choices) == {"auto", *model.NETWORKS}
    known = {n: (k.recurrent, k.min_side) for n, k in user_code.networks().items()}
    assert known == {n: (one.recurrent, one.min_side) for n, one in model.NETWORKS.items()}
    positional = [f.name for f in dataclasses.fields(model.Architecture) if not f.kw_only]
    assert positional == ["features"], "the launcher reads the others as keywords"


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "discrete") for name in model.NETWORKS), *(("mlp-lstm", kind) for kind in ACTIONS)],
)
def test_every_network_plays_every_kind_of_action(name: str, kind: str) -> None:
    actions, settings = ACTIONS[kind]
    space = SMALL if model.NETWORKS[name].min_side else VECTOR
    network = build(space, actions, network=name, initialization="paper", **settings)
    running = Running(network, space)
    output, samples = running.run(
        (running.output, running.samples), *rollout(space, network.state_size)
    )
    policy = network.policy
    assert output.policy_parameters.shape == (2, 3, policy.num_parameters)
    assert output.values.shape == (2, 3)
    assert output.state.shape == (3, network.state_size)
    assert all(part.dtype == np.float32 for part in output)
    assert all(np.isfinite(part).all() for part in output)
    assert tuple(running.output.values.shape.as_list()) == (None, None)
    assert all(actions.contains(action) for action in policy.to_env(samples[0]))


@pytest.mark.parametrize("name", ["mlp-lstm", "a3c-lstm"])
def test_separate_trunks_share_no_variables_and_no_state(name: str) -> None:
    space = SMALL if model.NETWORKS[name].min_side else VECTOR
    network = build(space, BOX, network=name, separate_value=True, initialization="paper")
    running = Running(network, space)
    by_value = running.reached_by(running.output.values)
    by_policy = running.reached_by(running.output.policy_parameters)
    assert by_value | by_policy == set(running.names())
    assert not by_value & by_policy
    assert by_value == {name for name in running.names() if is_value_only(name)}
    assert network.state_size == 2 * 2 * TINY.lstm_size
    observations, state, starts = rollout(space, network.state_size)
    output = running(observations, state, np.zeros_like(starts))
    other = running(observations, state + np.repeat([0, 1], 6), np.zeros_like(starts))
    np.testing.assert_array_equal(output.policy_parameters, other.policy_parameters)
    assert (output.values != other.values).any()


def test_on_a_shared_trunk_only_the_value_head_is_the_values_own() -> None:
    running = Running(build(VECTOR, Discrete(3), network="mlp"), VECTOR)
    by_policy = running.reached_by(running.output.policy_parameters)
    value_only = running.reached_by(running.output.values) - by_policy
    assert value_only == {"value/weights", "value/biases"}
    assert running.names()[-2:] == ["value/weights", "value/biases"]  # the order of a checkpoint
    assert value_only == {name for name in running.names() if is_value_only(name)}


def test_policies_start_near_uniform_and_values_do_not_start_flat() -> None:
    running = Running(build(VECTOR, Discrete(3), network="mlp"), VECTOR)
    output = running(*rollout(VECTOR, 0, time=50))
    assert np.abs(output.policy_parameters).max() < 0.05
    assert output.values.std() > 0.1


def test_auto_is_a3c_ff_for_images_it_can_take_and_mlp_for_all_else() -> None:
    shapes = {(4, 84, 84): "a3c-ff", (20, 20, 3): "a3c-ff", (19, 40, 3): "mlp"}
    images: list[Any] = [(Box(0, 255, shape, np.uint8), name) for shape, name in shapes.items()]
    for space, name in (*images, (VECTOR, "mlp")):
        assert build(space, Discrete(2), network="auto").description[0] == name


@pytest.mark.parametrize("name", [n for n, a in model.NETWORKS.items() if a.min_side > 1])
def test_the_smallest_image_that_is_taken_is_the_smallest_that_fits(name: str) -> None:
    side = model.NETWORKS[name].min_side
    fits = Box(0.0, 1.0, (side, side + 5, 1), np.float32)
    diagram.layer_table(build(fits, Discrete(2), network=name), fits)
    too_small = Box(0.0, 1.0, (side + 5, side - 1, 1), np.float32)
    what = f"network {name} needs images of at least {side}x{side}"
    refused(what, build, too_small, Discrete(2), network=name)
    refused(rf"{what}.*\(4,\).*--network mlp", build, VECTOR, Discrete(2), network=name)
    with tf.Graph().as_default():
        images, features = tf.zeros([1, 1, *too_small.shape]), model.NETWORKS[name].features
        refused(r"a \dx\d kernel does not fit into", features, images, None, TINY)


def test_model_py_prints_and_draws_layers(here: Path) -> None:
    own, pole = "examples.own_network:build", ("--preset=none", "--env-id=CartPole-v1", "--network")
    done = call_script("model.py", *pole, own, check=True)
    assert done.stderr == ""
    assert f"{own} on CartPole-v1" in done.stdout
    said = ended(0, model.main, *pole, "mlp", "--output", "net.png").out
    assert "mlp on CartPole-v1" in said
    assert "4,675" in said
    assert {path.name for path in here.iterdir()} == {"examples.own_network.build.png", "net.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in here.iterdir())
