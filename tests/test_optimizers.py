"""Optimizers against NumPy, where their variables live, and who shares them."""

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from a3c.config import LearningConfig
from a3c.run import checkpoint
from a3c.server import optimizers
from a3c.server.optimizers import own_step
from tests.graphs import run

Array = NDArray[np.floating]
Reference = Callable[[LearningConfig, Sequence[Array]], Array]
Kind = Literal["adam", "rmsprop", "sgd"]

RATES = [0.05, 0.0, 0.1, 0.05, 0.02, 0.05]  # another one at each step
SHAPES = {"global/trunk/kernel": (3, 2), "global/policy/bias": (2,), "global/value/kernel": (2, 1)}


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
    LearningConfig(optimizer="adam", adam_beta1=0.5, adam_beta2=0.9, adam_epsilon=0.1),
    LearningConfig(optimizer="rmsprop", rmsprop_alpha=0.5, rmsprop_epsilon=1e-3),
    LearningConfig(optimizer="rmsprop", rmsprop_initial_mean_square=7.5),
    LearningConfig(optimizer="rmsprop", rmsprop_momentum=0.9),
    LearningConfig(optimizer="sgd"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.optimizer)
def test_steps_match_numpy(config: LearningConfig) -> None:
    """The steps on the ps are made by the same function."""
    gradients = list(np.random.default_rng(0).normal(size=(len(RATES), 9)).astype(np.float32))
    own = own_step(replace(config, optimizer_statistics="per-worker"), 9)
    parameters = 1 - sum(own(*step)[0] for step in zip(gradients, RATES, strict=True))
    expected = REFERENCES[config.optimizer](config, gradients)
    np.testing.assert_allclose(parameters, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "num_slots", "num_counters"), [("adam", 2, 2), ("rmsprop", 2, 0), ("sgd", 0, 0)]
)
def test_slots_are_named_after_the_variable(kind: Kind, num_slots: int, num_counters: int) -> None:
    for scope in (None, "push"):
        with tf.Graph().as_default():
            with tf.compat.v1.name_scope(scope):
                for name, shape in SHAPES.items():
                    variable = tf.compat.v1.get_variable(name, shape, use_resource=True)
                    optimizers.step(LearningConfig(optimizer=kind), 0.1, tf.ones(shape), variable)
            assert {v.op.name for v in tf.compat.v1.trainable_variables()} == set(SHAPES)
            names = {v.op.name for v in tf.compat.v1.global_variables()} - set(SHAPES)
        assert all(checkpoint.is_of_optimizer(name) for name in names)
        for name in SHAPES:
            assert sum(other.startswith(f"{name}/") for other in names) == num_slots
            assert sum(other.startswith(f"counters/{name}/") for other in names) == num_counters
        assert len(names) == (num_slots + num_counters) * len(SHAPES)


def test_value_only_variables_have_a_part_of_their_name_that_starts_with_value() -> None:
    assert optimizers.is_value_only("global/value_2/kernel")
    assert not optimizers.is_value_only("global/policy_value/evaluate")


def test_concurrent_steps_of_unlocked_workers_are_not_lost() -> None:
    num_threads, num_steps, size = 4, 25, 500_000
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weights = tf.compat.v1.get_variable(
            "w", [size], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
        )
        step = optimizers.step(LearningConfig(optimizer="sgd"), 1.0, tf.ones([size]), weights)
        read = weights.read_value()
        session.run(tf.compat.v1.global_variables_initializer())

        def work(_: int) -> None:
            for _ in range(num_steps):
                session.run([step, read])

        with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(work, range(num_threads)))
        np.testing.assert_array_equal(session.run(weights), -num_threads * num_steps)


def test_only_gradients_with_a_finite_norm_above_the_limit_are_clipped() -> None:
    junk = [(norm, limit) for norm in (0.0, np.nan, np.inf) for limit in (0.0, 0.5)]
    cases = {**dict.fromkeys([(5.0, 0.0), (5.0, 5.0), (5.0, 6.0), *junk], 1.0), (5.0, 2.5): 0.5}
    clip = optimizers.clip_factor
    assert run(lambda: [clip(tf.constant(n), limit) for n, limit in cases]) == [*cases.values()]
