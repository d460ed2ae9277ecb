"""The policies against closed forms in NumPy, float64, and at extremes."""

import math
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from a3c.config import NetworkConfig
from a3c.net import distributions
from a3c.net.distributions import Policy, for_space
from tests import refused
from tests.graphs import log_softmax, run, variables


def f32(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


DISCRETE = Discrete(3)
MULTI = MultiDiscrete([2, 3])
BOX = Box(f32([-2.0, 0.0]), f32([2.0, 1.0]))
CLIP = NetworkConfig(action_bounds="clip")
SQUASH = NetworkConfig(action_bounds="squash")
BITS = MultiBinary([1, 3])
POLICIES = [(DISCRETE, CLIP), (MULTI, CLIP), (BITS, CLIP), (BOX, CLIP), (BOX, SQUASH)]


def samples(policy: Policy, parameters: Any, seed: int = 3) -> np.ndarray:
    rows = np.tile(f32(parameters), (20_000, 1))
    return run(lambda: policy.sample(tf.constant(rows)), seed)


def numbers_of(policy: Policy, parameters: Any, actions: Any) -> list[np.ndarray]:
    def build() -> Any:
        inputs = tf.constant(f32(parameters))
        stored = np.asarray(actions, policy.action_dtype)
        outputs = [policy.log_probability(inputs, stored), policy.entropy(inputs)]
        return outputs + [tf.gradients(output, inputs)[0] for output in outputs]

    return run(build)


@pytest.mark.parametrize(("space", "sizes"), [(DISCRETE, [3]), (MULTI, [2, 3])], ids=str)
def test_categorical_numbers_are_closed_forms_summed_over_choices(space: Any, sizes: Any) -> None:
    policy = for_space(space, CLIP)
    choices = np.array(list(np.ndindex(*sizes)))  # every action, each with its own logits
    logits = f32(np.random.default_rng(0).uniform(-20, 20, (len(choices), sum(sizes))))
    parts = np.split(logits.astype(np.float64), np.cumsum(sizes)[:-1], axis=-1)
    logs = [log_softmax(part) for part in parts]
    rows = np.arange(len(choices))
    expected = sum(log[rows, choice] for log, choice in zip(logs, choices.T, strict=True))
    actions = choices.reshape(-1, *policy.action_shape)
    log_p, entropies, *_ = numbers_of(policy, logits, actions)
    np.testing.assert_allclose(log_p, expected, atol=1e-5)
    expected = sum(-(np.exp(log) * log).sum(-1) for log in logs)
    np.testing.assert_allclose(entropies, expected, atol=1e-5)
    modes = np.stack([part.argmax(-1) for part in parts], -1).reshape(actions.shape)
    np.testing.assert_array_equal(run(lambda: policy.mode(tf.constant(logits))), modes)


@pytest.mark.parametrize(("space", "config"), POLICIES)
def test_extreme_parameters_give_finite_numbers_and_gradients(space: Any, config: Any) -> None:
    policy = for_space(space, config)
    if isinstance(space, Box):
        low, high = distributions.LOG_DEVIATION_RANGE
        rows: Any = [[1e4, -1e4, low, high], [-1e4, 0.0, high, low], [0.0, 0.0, low, low]]
        actions: Any = [[-1e4, 1e4], [1e4, 0.0], [0.0, 1e-3]]
    else:
        extremes = f32([1e4, -1e4, 0.0, 1e4, -1e4, 1e4, 0.0, -1e4])[: policy.num_parameters]
        rows = [extremes, -extremes, 0 * extremes]
        actions = np.zeros((3, *policy.action_shape))
    found = numbers_of(policy, rows, actions)
    for numbers in found:
        assert np.isfinite(numbers).all()
    if space is DISCRETE:
        log_p, entropies, *_ = found
        np.testing.assert_allclose(log_p, [0.0, -2e4, -math.log(3)], rtol=1e-6)
        assert (entropies >= 0).all()
        assert entropies[2] == pytest.approx(math.log(3))


def test_categorical_samples_come_as_often_as_their_probabilities_say_by_seed() -> None:
    policy = for_space(DISCRETE, CLIP)
    probabilities = np.array([0.7, 0.25, 0.05])
    drawn = samples(policy, np.log(probabilities))
    assert drawn.dtype == policy.action_dtype
    frequencies = np.bincount(drawn, minlength=3) / len(drawn)
    errors = np.sqrt(probabilities * (1 - probabilities) / len(drawn))
    assert (np.abs(frequencies - probabilities) < 5 * errors).all()
    np.testing.assert_array_equal(drawn, samples(policy, np.log(probabilities)))
    assert (drawn != samples(policy, np.log(probabilities), seed=2)).any()
    # Multi-categorical choices are independent.
    drawn = samples(for_space(MULTI, CLIP), np.log([0.4, 0.6, 0.5, 0.3, 0.2]))
    joint = np.zeros((2, 3))
    np.add.at(joint, tuple(drawn.T), 1 / len(drawn))
    np.testing.assert_allclose(joint, np.outer([0.4, 0.6], [0.5, 0.3, 0.2]), atol=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("space", "config"), POLICIES)
def test_a_diverged_network_still_gives_valid_actions(space: Any, config: Any, bad: float) -> None:
    policy = for_space(space, config)
    parameters = np.zeros((3, policy.num_parameters))
    parameters[0, 0], parameters[1] = bad, bad
    for actions in (
        run(lambda: policy.sample(tf.constant(f32(parameters)))),
        run(lambda: policy.mode(tf.constant(f32(parameters)))),
    ):
        assert all(space.contains(action) for action in policy.to_env(actions))


def test_gaussian_log_probability_and_entropy_match_their_closed_forms() -> None:
    policy = for_space(BOX, CLIP)
    mean, log_deviation, actions = np.random.default_rng(0).normal(size=(3, 5, 2))
    log_p, entropies, *_ = numbers_of(policy, np.hstack([mean, log_deviation]), actions)
    z = (actions - mean) / np.exp(log_deviation)
    expected = (-0.5 * z**2 - log_deviation - 0.5 * np.log(2 * np.pi)).sum(-1)
    np.testing.assert_allclose(log_p, expected, rtol=1e-4)
    expected = (0.5 * np.log(2 * np.pi * np.e) + log_deviation).sum(-1)
    np.testing.assert_allclose(entropies, expected, rtol=1e-5)


def test_gaussian_samples_have_the_mean_and_deviation_asked_for() -> None:
    drawn = samples(for_space(BOX, CLIP), [1.0, -3.0, math.log(2.0), math.log(0.1)])
    assert drawn.shape == (20_000, 2)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(0), [1.0, -3.0], atol=0.07)
    np.testing.assert_allclose(drawn.std(0), [2.0, 0.1], rtol=0.03)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


@pytest.mark.parametrize("mean", [0.0, 0.5, -3.0])
@pytest.mark.parametrize(("scale", "off"), [(0.1, 1e-4), (1.0, 1e-4), (3.0, 0.09), (30.0, 0.9)])
def test_squashed_entropy_is_near_the_integral(mean: float, scale: float, off: float) -> None:
    policy = for_space(Box(-3.0, 1.0, (1,), np.float64), SQUASH)
    z = np.linspace(-9, 9, 200_001)
    weights = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    u = np.abs(mean + scale * z)
    log_slope = 2 * (np.log(2) - u - np.log1p(np.exp(-2 * u))) + np.log(2.0)
    expected = 0.5 * np.log(2 * np.pi * np.e) + np.log(scale) + weights @ log_slope
    _, estimate, *_ = numbers_of(policy, [[mean, math.log(scale)]], [[0.0]])
    assert estimate == pytest.approx(expected, abs=off)


def test_actions_stay_within_the_bounds_in_their_shape_and_dtype() -> None:
    space = Box(np.array([[-1.0, 0, 2]]), np.array([[1, np.inf, 3]]), dtype=np.float64)
    policy = for_space(space, CLIP)
    assert policy.action_shape == (3,)
    actions = policy.to_env(f32([[0.5, -4, 2.5], [7, 9, -7]]))
    assert actions.dtype == np.float64
    np.testing.assert_array_equal(actions, [[[0.5, 0, 2.5]], [[1, 9, 2]]])
    actions = for_space(BOX, SQUASH).to_env(f32([[0, 0], [50, -50], [np.arctanh(0.5), 0]]))
    np.testing.assert_allclose(actions, f32([[0, 0.5], [2, 0], [1, 0.5]]), atol=1e-6)
    assert actions.dtype == np.float32


def test_infinite_bounds_are_clipped_to_nothing_and_never_squashed() -> None:
    space = Box(-np.inf, np.inf, (1,), np.float32)
    actions = f32([[3e38], [-3e38], [12.5]])
    np.testing.assert_array_equal(for_space(space, CLIP).to_env(actions), actions)
    refused(r"Box.*no bounds.*--action-bounds clip", for_space, space, SQUASH)
    refused("no bounds", for_space, Box(f32([0]), f32([np.inf])), SQUASH)


def test_bounds_that_leave_no_choice_keep_the_density_finite() -> None:
    policy = for_space(Box(f32([1, 0]), f32([1, 1])), SQUASH)
    log_p, *_ = numbers_of(policy, np.zeros((1, 4)), [[0.3, 0.3]])
    assert np.isfinite(log_p).all()
    np.testing.assert_array_equal(policy.to_env(f32([[0.3, 0.0]])), [[1.0, 0.5]])


def head(config: NetworkConfig) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    def build() -> Any:
        features = tf.constant(np.random.default_rng(0).normal(size=(2, 3, 8)), tf.float32)
        return for_space(BOX, config).head(features), variables()

    return run(build)


def test_deviations_are_one_variable_or_differ_by_state_around_their_start() -> None:
    parameters, variables = head(NetworkConfig(initial_log_deviation=-0.7))
    assert set(variables) == {"policy/weights", "policy/biases", "policy/log_deviation"}
    np.testing.assert_allclose(parameters[..., 2:], -0.7)
    assert np.abs(parameters[..., :2]).max() < 0.1
    config = NetworkConfig(gaussian_deviation="state-dependent", initial_log_deviation=-0.7)
    parameters, variables = head(config)
    assert {"policy/deviation/weights", "policy/deviation/biases"} < set(variables)
    np.testing.assert_allclose(parameters[..., 2:], -0.7, atol=0.1)
    assert np.ptp(parameters[..., 2:]) > 1e-3


@pytest.mark.parametrize(
    ("start", "sign", "expected"),
    [(9.0, 1, 1.0), (9.0, -1, 0.0), (-12.0, 1, 0.0), (-12.0, -1, -1.0), (0.0, 1, 1.0)],
)
def test_log_deviations_stay_in_range_or_return(start: float, sign: int, expected: float) -> None:
    """Descending a loss of slope `sign`: a step further out is stopped, a step back in is not."""

    def build() -> Any:
        config = NetworkConfig(initial_log_deviation=start)
        parameters = for_space(BOX, config).head(tf.zeros([1, 1, 4]))
        variable = variables()["policy/log_deviation"]
        return parameters[0, 0, 2], tf.gradients(sign * parameters[..., 2], variable)[0][0]

    value, gradient = run(build)
    assert value == np.clip(start, *distributions.LOG_DEVIATION_RANGE)
    assert gradient == expected


def played(policy: Policy, parameters: Any, actions: Any, epsilon: float) -> np.ndarray:
    stored = np.asarray(actions, policy.action_dtype)
    rows, chances = np.tile(f32(parameters), (len(actions), 1)), np.full(len(actions), f32(epsilon))

    def density() -> Any:
        return tf.exp(policy.played_log_probability(*map(tf.constant, (rows, stored, chances))))

    return run(density)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_what_is_played_is_drawn_from_a_mix_of_policy_and_random_actions(epsilon: float) -> None:
    logits = [0.5, -1.0, 2.0]
    by_policy = np.exp(log_softmax(np.array(logits)))
    found = played(for_space(DISCRETE, CLIP), logits, [0, 1, 2], epsilon)
    np.testing.assert_allclose(found, (1 - epsilon) * by_policy + epsilon / 3)
    every = [(i, j) for i in range(2) for j in range(3)]
    of_pairs = played(for_space(MULTI, CLIP), [5.0, -5.0, 0, 0, 20.0], every, epsilon)
    assert of_pairs.sum() == pytest.approx(1.0, abs=1e-5)
    assert of_pairs.min() >= epsilon / 6 * 0.999


@pytest.mark.parametrize("config", [CLIP, SQUASH], ids=["clip", "squash"])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_densities_of_what_is_played_integrate_to_one(config: Any, epsilon: float) -> None:
    policy = for_space(Box(-2.0, 1.0, (1,), np.float32), config)
    actions = np.linspace(-9, 9, 20_001)[:, None]
    slope = np.ones(len(actions))
    if config is SQUASH:  # densities are of the squashed action
        slope = 1.5 * (1 - np.tanh(actions[:, 0]) ** 2)
    density = played(policy, [0.3, -0.5], actions, epsilon) * slope
    assert np.trapezoid(density, actions[:, 0]) == pytest.approx(1.0, abs=2e-3)


def test_random_actions_without_bounds_are_drawn_from_a_gaussian() -> None:
    policy = for_space(Box(-np.inf, np.inf, (1,), np.float32), CLIP)
    density = played(policy, [5.0, 0.0], [[0.0]], 1.0)
    assert density == pytest.approx(1 / np.sqrt(2 * np.pi), rel=1e-5)
    space = Box(f32([-np.inf, 0]), f32([np.inf, 1]))
    actions = for_space(space, CLIP).random_actions(np.random.default_rng(0), np.zeros((500, 4)))
    assert np.isfinite(actions).all()
    assert actions[:, 0].std() == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(("space", "config"), POLICIES)
def test_random_actions_are_stored_like_samples_and_spread_evenly(space: Any, config: Any) -> None:
    policy = for_space(space, config)
    parameters = np.zeros((2000, policy.num_parameters))
    actions = policy.random_actions(np.random.default_rng(0), parameters)
    assert actions.shape == (2000, *policy.action_shape)
    assert actions.dtype == policy.action_dtype
    played = policy.to_env(actions)
    assert all(space.contains(action) for action in played)
    if isinstance(space, Box):
        middle, sixth = (space.low + space.high) / 2, (space.high - space.low) / math.sqrt(12)
        np.testing.assert_allclose(played.mean(0), middle, atol=0.1)
        np.testing.assert_allclose(played.std(0), sixth, rtol=0.05)
    else:
        _, counts = np.unique(played, axis=0, return_counts=True)
        assert len(counts) == {1: 3, 2: 6, 3: 8}[max(1, actions[0].size)]
        assert counts.min() > 0.8 * 2000 / len(counts)


def test_other_action_spaces_are_refused_by_name() -> None:
    for space in (Dict({"a": Discrete(2)}), Tuple([Discrete(2)]), Box(0, 5, (1,), np.int64)):
        refused(rf"{re.escape(str(space))} has no policy: wrap", for_space, space, CLIP)


def test_policies_describe_themselves() -> None:
    assert for_space(DISCRETE, CLIP).describe() == "categorical over 3 actions"
    assert for_space(BITS, CLIP).describe() == "multi-categorical over 2x2x2 actions"
    of_box = "Gaussian over 2 numbers, squashed, state-independent deviation"
    assert for_space(BOX, SQUASH).describe() == of_box
