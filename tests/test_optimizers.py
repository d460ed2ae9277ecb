"""Optimizers against NumPy, where their variables live, and who shares them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from a3c.config import LearningConfig
from a3c.server import optimizers
from a3c.server.optimizers import OwnStatistics

Array = NDArray[np.floating]
Reference = Callable[[LearningConfig, Sequence[Array]], Array]
Kind = Literal["adam", "rmsprop", "sgd"]

RATES = [0.05, 0.0, 0.1, 0.05, 0.02, 0.05]  # another one at each step
SHAPES = {"global/trunk/kernel": (3, 2), "global/policy/bias": (2,), "global/value/kernel": (2, 1)}


def make_gradients(num_steps: int, seed: int = 0) -> list[dict[str, Array]]:
    generator = np.random.default_rng(seed)
    return [
        {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(num_steps)
    ]


class Graph:
    """A worker's graph: variables that start at 1, and one step of an optimizer."""

    def __init__(self, config: LearningConfig, scope: str = "") -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = {
                name: tf.compat.v1.get_variable(
                    name, shape, initializer=tf.compat.v1.ones_initializer(), use_resource=True
                )
                for name, shape in SHAPES.items()
            }
            self.gradients = {
                name: tf.compat.v1.placeholder(tf.float32, shape) for name, shape in SHAPES.items()
            }
            self.learning_rate = tf.compat.v1.placeholder(tf.float32, [])
            with tf.compat.v1.name_scope(scope or None):
                self.step = [
                    optimizers.step(config, self.learning_rate, gradient, self.variables[name])
                    for name, gradient in self.gradients.items()
                ]
            every = tf.compat.v1.global_variables()
            self.slots = [v for v in every if v.op.name not in self.variables]
            self.initialize = tf.compat.v1.global_variables_initializer()


def train(config: LearningConfig, gradients: Sequence[dict[str, Array]]) -> dict[str, Array]:
    worker = Graph(config)
    with tf.compat.v1.Session(graph=worker.graph) as session:
        session.run(worker.initialize)
        for gradient, rate in zip(gradients, RATES, strict=True):
            feeds = {worker.gradients[name]: value for name, value in gradient.items()}
            session.run(worker.step, {**feeds, worker.learning_rate: rate})
        return session.run(worker.variables)


def adam_reference(config: LearningConfig, gradients: Sequence[Array]) -> Array:
    """Kingma and Ba 2015, the form with ε̂ at the end of their section 2."""
    theta = np.ones(gradients[0].shape)
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t, (gradient, rate) in enumerate(zip(gradients, RATES, strict=True), start=1):
        m = config.adam_beta1 * m + (1 - config.adam_beta1) * gradient
        v = config.adam_beta2 * v + (1 - config.adam_beta2) * gradient.astype(np.float64) ** 2
        correction = np.sqrt(1 - config.adam_beta2**t) / (1 - config.adam_beta1**t)
        theta -= rate * correction * m / (np.sqrt(v) + config.adam_epsilon)
    return theta


def rmsprop_reference(config: LearningConfig, gradients: Sequence[Array]) -> Array:
    """Mnih et al. 2016, section 4: ε inside the root; momentum in units of the parameters."""
    theta = np.ones(gradients[0].shape)
    g = np.full(theta.shape, config.rmsprop_initial_mean_square)
    momentum = np.zeros_like(theta)
    for gradient, rate in zip(gradients, RATES, strict=True):
        g = config.rmsprop_alpha * g + (1 - config.rmsprop_alpha) * gradient.astype(np.float64) ** 2
        step = rate * gradient / np.sqrt(g + config.rmsprop_epsilon)
        momentum = config.rmsprop_momentum * momentum + step
        theta -= momentum
    return theta


REFERENCES: dict[Kind, Reference] = {
    "adam": adam_reference,
    "rmsprop": rmsprop_reference,
    "sgd": lambda _, gradients: 1 - np.tensordot(RATES, gradients, 1),
}
CONFIGS = [
    LearningConfig(optimizer="adam"),
    LearningConfig(optimizer="adam", adam_beta1=0.5, adam_beta2=0.9, adam_epsilon=0.1),
    LearningConfig(optimizer="rmsprop"),
    LearningConfig(optimizer="rmsprop", rmsprop_alpha=0.5, rmsprop_epsilon=1e-3),
    LearningConfig(optimizer="rmsprop", rmsprop_initial_mean_square=1.0),
    LearningConfig(optimizer="rmsprop", rmsprop_initial_mean_square=7.5),
    LearningConfig(optimizer="rmsprop", rmsprop_momentum=0.9),
    LearningConfig(optimizer="sgd"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.optimizer)
def test_steps_are_numpys_with_statistics_shared_or_of_a_workers_own(
    config: LearningConfig,
) -> None:
    reference, gradients = REFERENCES[config.optimizer], make_gradients(len(RATES))
    for name, found in train(config, gradients).items():
        expected = reference(config, [step[name] for step in gradients])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    flat = [np.concatenate([np.ravel(g) for g in step.values()]) for step in gradients]
    own = OwnStatistics(replace(config, optimizer_statistics="per-worker"), flat[0].size)
    parameters = 1 - sum(own.step(*step) for step in zip(flat, RATES, strict=True))
    np.testing.assert_allclose(parameters, reference(config, flat), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "num_slots", "num_counters"), [("adam", 2, 2), ("rmsprop", 2, 0), ("sgd", 0, 0)]
)
def test_optimizer_variables_go_by_their_variable_wherever_the_step_is_built(
    kind: Kind, num_slots: int, num_counters: int
) -> None:
    for scope in ("", "push"):
        worker = Graph(LearningConfig(optimizer=kind), scope=scope)
        names = [slot.op.name for slot in worker.slots]
        for name in SHAPES:
            assert sum(other.startswith(f"{name}/") for other in names) == num_slots
            assert sum(other.startswith(f"counters/{name}/") for other in names) == num_counters
        assert len(names) == (num_slots + num_counters) * len(SHAPES)
        with worker.graph.as_default():
            assert {v.op.name for v in tf.compat.v1.trainable_variables()} == set(SHAPES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("global/value/kernel:0", True),
        ("value:0", True),
        ("value_trunk/dense_0/bias:0", True),
        ("global/policy/kernel:0", False),
        ("global/trunk/evaluate:0", False),
        ("global/policy_value/kernel:0", False),
    ],
)
def test_value_only_variables_are_told_by_their_names(name: str, expected: bool) -> None:
    assert optimizers.is_value_only(name) is expected


def test_concurrent_steps_of_unlocked_workers_are_not_lost() -> None:
    num_threads, num_steps, size = 4, 25, 500_000
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weights = tf.compat.v1.get_variable(
            "w", [size], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
        )
        step = optimizers.step(LearningConfig(optimizer="sgd"), 1.0, tf.ones([size]), weights)
        read = weights.read_value()
        session.run(tf.compat.v1.global_variables_initializer())

        def work() -> None:
            for _ in range(num_steps):
                session.run([step, read])

        threads = [threading.Thread(target=work) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(session.run(weights), -num_threads * num_steps)


def clip(gradient: Sequence[float], max_norm: float) -> tuple[Array, float]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(optimizers.clip_flat(tf.constant(gradient, tf.float32), max_norm))


@pytest.mark.parametrize("max_norm", [5.0, 6.0, 0.0])
@pytest.mark.parametrize("size", [1.0, 0.0])
def test_short_gradients_and_gradients_without_a_limit_are_bit_equal(
    max_norm: float, size: float
) -> None:
    clipped, norm = clip([3.0 * size, -4.0 * size], max_norm)
    np.testing.assert_array_equal(clipped, [3.0 * size, -4.0 * size])
    assert norm == 5.0 * size


@pytest.mark.parametrize("max_norm", [0.5, 0.0])
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e30])
def test_gradient_with_a_norm_that_is_not_finite_stays_visible(
    junk: float, max_norm: float
) -> None:
    clipped, norm = clip([1.0, junk], max_norm)
    assert not np.isfinite(norm)
    np.testing.assert_array_equal(clipped, np.array([1.0, junk], np.float32))
