"""Losses against hand-worked targets and finite differences, and what no gradient may reach."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from a3c.learn import losses
from tests import graphs

Array = NDArray[Any]
Arrays = dict[str, Array]

NAMES = ["log_probabilities", "values", "entropies", "advantages", "returns"]


def make_samples() -> Arrays:
    """Random arguments of `losses.total`, float64, one sample of each env masked."""
    generator = np.random.default_rng(7)
    arrays = {name: generator.normal(size=(4, 3)) for name in NAMES}
    mask = np.ones((4, 3))
    mask[1, :] = 0.0
    return {**arrays, "mask": mask}


def run(function: Callable[..., Any], arrays: Arrays, **constants: Any) -> Any:
    """The values of what `function` gives for arrays of these names."""
    return graphs.run(
        lambda: function(**{name: tf.constant(a) for name, a in arrays.items()}, **constants)
    )


def gradients_of(function: Callable[..., Any], arrays: Arrays, of: str | int = "total") -> Arrays:
    """The gradient of one number that `function` gives, by the arrays that any reaches."""

    def differentiate(**inputs: Any) -> dict[str, Any]:
        loss = function(**inputs)[of]
        names = [name for name in inputs if name != "mask"]
        found = tf.gradients(loss, [inputs[name] for name in names])
        return {n: g for n, g in zip(names, found, strict=True) if g is not None}

    return run(differentiate, arrays)


def total(
    of_policy: Callable[[Any], dict[str, Any]] = lambda _: {},
    of_value: Callable[[Any], dict[str, Any]] = lambda _: {},
    **inputs: Any,
) -> Arrays:
    """The total loss; `of_policy` and `of_value` give further arguments for values `[T, B]`."""
    values, mask = inputs["values"], inputs["mask"]
    policy = losses.policy(
        *(inputs["log_probabilities"], inputs["advantages"], mask), **of_policy(values)
    )
    value = losses.value(values, inputs["returns"], mask, **of_value(values))
    return losses.total(policy, value, 0.7, inputs["entropies"], 0.3, mask)


def limited(
    log_probabilities: Any, *, played: float = 0.0, ratio_limit: Any = 0.2, **others: Any
) -> losses.Loss:
    before = tf.zeros_like(log_probabilities) + played
    return losses.policy(
        log_probabilities, **others, played_log_probabilities=before, ratio_limit=ratio_limit
    )


normalized_total = partial(total, lambda _: {"normalize": True})
limited_total = partial(
    total, lambda v: {"played_log_probabilities": tf.zeros_like(v) - 0.1, "ratio_limit": 0.5}
)
value_clipped_total = partial(
    total, of_value=lambda v: {"played_values": tf.zeros_like(v) + 0.3, "clip": 0.4}
)


def column(*numbers: float, dtype: Any = np.float64) -> Array:
    return np.array(numbers, dtype)[:, None]  # [T, 1]


def test_policy_loss_of_a_hand_worked_rollout() -> None:
    arrays = {
        "log_probabilities": column(-1.0, -2.0, -5.0),
        "advantages": column(3.0, -1.0, 100.0),
        "mask": column(1.0, 1.0, 0.0),
    }
    loss, extras = run(losses.policy, arrays)
    assert loss == pytest.approx(0.5)  # -(3·-1 + -1·-2) / 2
    assert extras["mean_advantage"] == pytest.approx(1.0)
    assert extras["advantage_deviation"] == pytest.approx(2.0)


def test_equal_advantages_are_not_scaled_by_their_rounding_error() -> None:
    arrays = dict.fromkeys(("log_probabilities", "mask"), np.ones((7, 1), np.float32))
    arrays["advantages"] = np.full((7, 1), 101.3, np.float32)
    loss, _ = run(partial(losses.policy, normalize=True), arrays)
    assert loss == pytest.approx(0.0, abs=1e-3)


def test_clipped_surrogate_of_a_hand_worked_rollout() -> None:
    log = np.log
    arrays = {
        "log_probabilities": column(log(0.6), log(0.6), log(0.1), log(0.1), log(0.5), 9.0),
        "played_log_probabilities": column(log(0.4), log(0.4), log(0.4), log(0.4), log(0.5), 0),
        "advantages": column(2.0, -2.0, 2.0, -2.0, 3.0, 1e9),
        "mask": column(1.0, 1.0, 1.0, 1.0, 1.0, 0.0),
    }
    loss, extras = run(losses.policy, arrays, ratio_limit=0.2)
    # What was driven far enough gains no more, 1.2·2 and 0.8·-2; what went the wrong way counts.
    assert loss == pytest.approx(-(2.4 - 3.0 + 0.5 - 1.6 + 3.0) / 5)
    assert extras["clipped_share"] == pytest.approx(4 / 5)
    divergence = 2 * (0.5 - log(1.5)) + 2 * (-0.75 - log(0.25))
    assert extras["divergence"] == pytest.approx(divergence / 5)
    assert extras["mean_advantage"] == pytest.approx(3 / 5)


def test_the_gradient_is_finite_however_much_more_or_less_likely_an_action_has_become() -> None:
    """e^100 is past float32; the branch that the minimum leaves out must not make it NaN."""
    arrays = {
        "log_probabilities": column(100, 100, -100, -100, 0.1, dtype=np.float32),
        "advantages": column(1, -1, 1, -1, 1, dtype=np.float32),
        "mask": np.ones((5, 1), np.float32),
    }
    gradient = gradients_of(limited, arrays, of=0)["log_probabilities"]
    assert np.isfinite(gradient).all()
    assert gradient[-1, 0] < 0
    loss, extras = run(limited, arrays)
    assert np.isfinite([loss, *extras.values()]).all()


def test_a_ratio_limit_of_zero_trains_what_is_unchanged_or_on_the_wrong_side() -> None:
    arrays = {
        "log_probabilities": np.log(column(0.5, 0.6, 0.6, 0.4, 0.4)),
        "advantages": column(3.0, 2.0, -2.0, 2.0, -2.0),
        "mask": np.ones((5, 1)),
    }

    def at_half(**inputs: Any) -> losses.Loss:
        limit = tf.constant(0.0, tf.float64)  # a tensor, so that it can be annealed
        return limited(**inputs, played=np.log(0.5), ratio_limit=limit)

    gradient = gradients_of(at_half, arrays, of=0)["log_probabilities"]
    np.testing.assert_allclose(gradient, column(-3.0, 0.0, 2.4, -1.6, 0.0) / 5)
    loss, extras = run(at_half, arrays)
    assert loss == pytest.approx(-(3.0 + 2.0 - 2.4 + 1.6 - 2.0) / 5)
    assert extras["clipped_share"] == pytest.approx(4 / 5)


def test_value_loss_of_a_hand_worked_rollout_is_half_the_mean_squared_error() -> None:
    arrays = {
        "values": column(1.0, 2.0, 50.0),
        "returns": column(3.0, -2.0, -50.0),
        "mask": column(1.0, 1.0, 0.0),
    }
    loss, extras = run(losses.value, arrays)
    assert loss == pytest.approx(5.0)  # 0.5·(4 + 16) / 2
    assert extras["mean_value"] == pytest.approx(1.5)
    assert extras["mean_return"] == pytest.approx(0.5)
    assert extras["explained_variance"] == pytest.approx(1 - 9 / 6.25)


def test_clipped_value_loss_of_a_hand_worked_rollout() -> None:
    arrays = {
        "values": column(1.5, 2.0, 2.0, 0.0, 0.0, 9.0),
        "returns": column(3.0, 3.0, -1.0, -3.0, 3.0, 1e9),
        "mask": column(1.0, 1.0, 1.0, 1.0, 1.0, 0.0),
    }

    def clipped(values: Any, **others: Any) -> losses.Loss:
        return losses.value(values, **others, played_values=tf.ones_like(values), clip=0.5)

    loss, extras = run(clipped, arrays)
    # Values are limited to 0.5 … 1.5: within; too far towards R; away from it; and both downwards.
    assert loss == pytest.approx(0.5 * (1.5**2 + 1.5**2 + 3**2 + 3.5**2 + 3**2) / 5)
    gradient = gradients_of(clipped, arrays, of=0)["values"]
    np.testing.assert_allclose(gradient, column(-1.5, 0.0, 3.0, 0.0, -3.0, 0.0) / 5)
    plain, expected = run(losses.value, arrays)
    assert loss > plain
    assert extras == expected


@pytest.mark.parametrize("function", [total, normalized_total, limited_total, value_clipped_total])
def test_no_gradient_reaches_masked_samples_advantages_or_returns(function: Any) -> None:
    """Masked samples add nothing to the losses either, whatever they hold."""
    clean, dirty = make_samples(), make_samples()
    for name in NAMES:
        dirty[name][dirty["mask"] == 0] = [1e30, np.inf, np.nan]
    assert run(function, dirty) == run(function, clean)
    expected, found = gradients_of(function, clean), gradients_of(function, dirty)
    parts = {"policy": "log_probabilities", "value": "values", "entropy": "entropies"}
    assert found.keys() == {*parts.values()}
    for part, own in parts.items():
        assert gradients_of(function, clean, of=part).keys() == {own}
    for name, gradient in found.items():
        np.testing.assert_array_equal(gradient[dirty["mask"] == 0], 0.0)
        np.testing.assert_array_equal(gradient, expected[name])


def test_rollout_without_a_training_sample_costs_nothing_and_moves_nothing() -> None:
    arrays = make_samples()
    arrays["mask"] = np.zeros_like(arrays["mask"])
    loss = run(normalized_total, arrays)
    assert [loss[part] for part in ("total", "policy", "value", "entropy")] == [0.0] * 4
    assert np.isfinite(list(loss.values())).all()
    for gradient in gradients_of(normalized_total, arrays).values():
        assert not gradient.any()


def test_normalized_advantages_have_mean_zero_and_deviation_one_over_training_samples() -> None:
    arrays = make_samples()
    arrays["advantages"] = 5.0 + 3.0 * arrays["advantages"]
    gradient = gradients_of(normalized_total, arrays)["log_probabilities"]
    used = -gradient[arrays["mask"] > 0] * arrays["mask"].sum()
    assert used.mean() == pytest.approx(0.0, abs=1e-9)
    assert used.std() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_explained_variance(dtype: Any) -> None:
    for values, returns, expected in (
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), 1.0),
        ((5.0, 5.0, 5.0), (1.0, 2.0, 3.0), 0.0),
        *(((0.0, 1.0, 2.0), (always,) * 3, 0.0) for always in (1.1, 0.0)),
        ((3.0, 2.0, 1.0), (1.0, 2.0, 3.0), -3.0),
    ):
        arrays = {"values": column(*values), "returns": column(*returns), "mask": np.ones((3, 1))}
        _, extras = run(losses.value, {name: array.astype(dtype) for name, array in arrays.items()})
        assert extras["explained_variance"] == pytest.approx(expected, abs=1e-5), (values, returns)


@pytest.mark.parametrize("wrong", [(4, 3, 1), (12,), (4, 1), (3, 3)])
def test_losses_refuse_shapes_that_don_t_fit(wrong: tuple[int, ...]) -> None:
    for function in (total, limited_total, value_clipped_total):
        for argument in [*NAMES, "mask"]:
            arrays = {**make_samples(), argument: np.zeros(wrong)}
            with pytest.raises(ValueError, match=rf"Shape.* \({wrong[0]},"):
                run(function, arrays)
