"""One update on a real cluster: what it moves, what it refuses to push, what it counts."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from a3c.config import Config
from a3c.learn.agent import Batch, Gradient
from a3c.learn.learner import Learner, minibatches
from a3c.learn.returns import gae
from a3c.learn.rollout import Player, Rollout, Stopwatch
from a3c.run.metrics import METRICS, Episode
from tests import Patch
from tests.clusters import InProcessCluster, agent, push_of, small_config
from tests.graphs import log_softmax, slope
from tests.scripted import Script, make_envs, random_rollout

Weights = dict[str, np.ndarray]

PLAIN = {"optimizer": "sgd", "learning_rate": 0.5, "max_gradient_norm": 0.0, "hidden_sizes": [4]}
SGD = small_config(**PLAIN)
SHAPED = small_config(
    **{**PLAIN, "max_gradient_norm": 0.01},
    learning_rate_schedule="linear",
    max_env_steps=100,
    critic_learning_rate_scale=0.25,
    gae_lambda=0.8,
    entropy_weight=0.3,
    value_loss_weight=2.0,
)
APART = small_config(**{**PLAIN, "max_gradient_norm": 0.1, "critic_max_gradient_norm": 0.02})
CLIPPED = small_config(**PLAIN, ratio_limit=0.3, value_clip=0.4, workers=2)
LIMITED = small_config(**PLAIN, ratio_limit=0.3, workers=2)
UNPREDICTED = small_config(**PLAIN, ratio_limit=0.3, workers=2, predict_weights=False)
ALONE = small_config(**PLAIN, ratio_limit=0.3, workers=1)
NORMALISED = small_config(optimizer="adam", normalize_observations=True)


class Side:
    """One worker: its agent, its view of the ps, and its learner."""

    def __init__(self, cluster: InProcessCluster, settings: Config, worker: int) -> None:
        self.agent = agent(settings, seed=worker)
        self.store = cluster.store(settings, worker, self.agent)
        self.initial = self.agent.parameters()
        self._settings, self._worker = settings, worker

    def join(self) -> Side:
        """Start as a worker does that finds a ps that is ready."""
        clock, seed = Stopwatch(), self._worker
        self.learner = Learner(self.agent, self.store, self._settings, clock, seed=seed)
        return self

    def named(self) -> dict[str, np.ndarray]:
        return {k: v.copy() for k, v in self.store.snapshot().values.items()}


class Sides:
    """Workers for each configuration; graphs are dear, so they are made once and when needed."""

    def __init__(self) -> None:
        self._cluster = InProcessCluster(num_ps=2, num_workers=2)
        self._made: dict[tuple[str, int], Side] = {}

    def one(self, settings: Config, weights: Weights | None = None) -> Side:
        side = self._side(settings, 0)
        side.store.initialize(side.initial if weights is None else weights)
        return side.join()

    def two(self, settings: Config) -> tuple[Side, Side]:
        return self.one(settings), self._side(settings, 1).join()

    def _side(self, settings: Config, worker: int) -> Side:
        key = (repr(settings), worker)
        if key not in self._made:
            self._made[key] = Side(self._cluster, settings, worker)
        return self._made[key]


@pytest.fixture(scope="module")
def sides() -> Sides:
    return Sides()


def forward(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inner = x.astype(np.float64) @ weights["hidden1/weights"] + weights["hidden1/biases"]
    hidden = np.tanh(inner)
    return hidden, (hidden @ weights["value/weights"] + weights["value/biases"])[..., 0]


def loss_by_definition(
    weights: Weights, rollout: Rollout, settings: Config, loaded: Weights | None = None
) -> float:
    """The loss of docs/numerics.md; returns are estimated with the `loaded` weights, if others."""
    learning = settings.learning
    played, bootstrap = rollout.values, rollout.bootstrap_value
    if learning.ratio_limit and learning.predict_weights and settings.cluster.workers > 1:
        everything = np.concatenate([rollout.observations, rollout.next_observations[None]])
        newest = forward(loaded or weights, everything)[1]
        played, bootstrap = newest[:-1], newest[-1]
    advantages, returns = gae(
        rollout.rewards, played, bootstrap, rollout.discounts, learning.gae_lambda
    )
    hidden, values = forward(weights, rollout.observations)
    logits = hidden @ weights["policy/weights"] + weights["policy/biases"]
    log_pi = log_softmax(logits)
    taken = np.take_along_axis(log_pi, rollout.actions[..., None], axis=-1)[..., 0]
    entropy = -(np.exp(log_pi) * log_pi).sum(axis=-1)
    gain = advantages * taken
    if limit := settings.learning.ratio_limit:
        log_played = log_softmax(rollout.policy_parameters.astype(np.float64))
        log_played = np.take_along_axis(log_played, rollout.actions[..., None], axis=-1)[..., 0]
        epsilon = rollout.epsilon  # random ones of two actions
        log_played = np.log((1 - epsilon) * np.exp(log_played) + epsilon / 2)
        ratio = np.exp(taken - log_played)
        gain = np.minimum(ratio * advantages, np.clip(ratio, 1 - limit, 1 + limit) * advantages)
    errors = (returns - values) ** 2
    if clip := learning.value_clip:
        within = np.clip(values, rollout.values - clip, rollout.values + clip)
        errors = np.maximum(errors, (returns - within) ** 2)
    terms = -gain + learning.value_loss_weight * 0.5 * errors - learning.entropy_weight * entropy
    return float((rollout.mask * terms).sum() / rollout.mask.sum())


def gradient_by_differences(weights: Weights, rollout: Rollout, settings: Config) -> Weights:
    """The gradient of `loss_by_definition`, one weight after the other."""
    moved = {name: value.copy() for name, value in weights.items()}

    def loss() -> float:
        return loss_by_definition(moved, rollout, settings, weights)

    return {
        name: np.reshape([slope(loss, value, i) for i in np.ndindex(value.shape)], value.shape)
        for name, value in moved.items()
    }


@pytest.mark.parametrize(
    "settings",
    [SGD, SHAPED, LIMITED, UNPREDICTED, ALONE, CLIPPED, APART],
    ids=["plain", "shaped", "limited", "unpredicted", "alone", "clipped", "apart"],
)
def test_an_update_moves_the_ps_and_has_metrics_like_numpys(sides: Sides, settings: Config) -> None:
    side = sides.one(settings)
    rollout = random_rollout(1)
    before = {k: v.astype(np.float64) for k, v in side.agent.parameters().items()}
    gradient = gradient_by_differences(before, rollout, settings)
    norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
    metrics = side.learner.update(rollout).metrics
    after, loaded = side.named(), side.agent.parameters()
    assert norm > 0.01
    own_limit = settings.learning.critic_max_gradient_norm
    for name, value in before.items():
        scale = settings.learning.critic_learning_rate_scale if "value" in name else 1.0
        limit, clipped = settings.learning.max_gradient_norm, list(gradient)
        if own_limit is not None:
            clipped = [other for other in gradient if ("value" in other) == ("value" in name)]
            limit = own_limit if "value" in name else limit
        length = np.sqrt(sum((gradient[other] ** 2).sum() for other in clipped))
        step = 0.5 * scale * min(1.0, (limit or np.inf) / length) * gradient[name]
        np.testing.assert_allclose(value - after[name], step, rtol=1e-3, atol=1e-6)
        np.testing.assert_array_equal(loaded[name], after[name])
    assert metrics["train/gradient_norm"] == pytest.approx(norm, rel=1e-4)
    loss = loss_by_definition(before, rollout, settings)
    assert metrics["loss/total"] == pytest.approx(loss, rel=1e-4)
    losses = {name for name in METRICS if name.startswith("loss/")}
    if not settings.learning.ratio_limit:
        losses -= {"loss/clipped_share", "loss/divergence"}
    assert {name for name in metrics if not name.startswith("train/")} == losses
    assert metrics.keys() <= METRICS.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    assert after["global_step"] == np.count_nonzero(rollout.mask)
    assert after["num_updates"] == 1


def test_annealed_settings_are_those_of_the_step_at_which_an_update_begins(sides: Sides) -> None:
    limits: dict[str, Any] = {"ratio_limit": 0.9, "ratio_limit_final": 0.3, "anneal_steps": 1}
    limits |= {"learning_rate_schedule": "linear", "learning_rate_final": 0.1}
    side = sides.one(small_config(**PLAIN, **limits))
    first = side.learner.update(random_rollout(1))
    weights = {k: v.astype(np.float64) for k, v in side.agent.parameters().items()}
    second = side.learner.update(random_rollout(2))
    for name, each in (("ratio_limit", [0.9, 0.3]), ("learning_rate", [0.5, 0.1])):
        assert [update.metrics[f"train/{name}"] for update in (first, second)] == each, name
    loss = loss_by_definition(weights, random_rollout(2), LIMITED)
    assert second.metrics["loss/total"] == pytest.approx(loss, rel=1e-4)
    assert loss != pytest.approx(loss_by_definition(weights, random_rollout(2), SGD), rel=1e-3)


def test_every_epoch_learns_from_all_but_counts_steps_and_statistics_once(sides: Sides) -> None:
    settings = {"minibatches": 3, "epochs": 2, "ratio_limit": 0.2}
    side = sides.one(small_config(**settings, normalize_observations=True, normalize_rewards=True))
    rollout = random_rollout(3)._replace(return_statistics=np.array([15.0, -3.0, 40.0]))
    for times in (1, 2):
        update = side.learner.update(rollout)
        steps = times * np.count_nonzero(rollout.mask)
        assert side.named()["num_updates"] == times * 6
        assert side.named()["global_step"] == steps
        statistics = side.learner.reply.statistics  # of observations, then of returns
        assert (len(statistics), statistics[0]) == (10, steps)
        assert side.learner.return_statistics().tolist() == [15 * times, -3 * times, 40 * times]
        assert 0 <= update.metrics["loss/clipped_share"] <= 1


def test_a_limit_of_divergence_leaves_out_later_epochs(sides: Sides, monkeypatch: Patch) -> None:
    """1.5 × 0.2 is the limit: the fifth minibatch is above it, the first may be."""
    settings = {"minibatches": 2, "epochs": 4, "ratio_limit": 0.2, "kl_limit": 0.2}
    side = sides.one(small_config(**PLAIN, **settings))
    divergences, really = iter([9.0, 0.1, 0.29, 0.3, 0.31, 0.0]), side.agent.gradient

    def gradient(*given: Any) -> Gradient:
        found = really(*given)
        return found._replace(parts=found.parts | {"loss/divergence": next(divergences)})

    monkeypatch.setattr(side.agent, "gradient", gradient)
    rollout = random_rollout(3)
    assert side.learner.update(rollout).num_gradients == 4
    assert side.named()["num_updates"] == 4
    assert side.learner.reply.global_step == np.count_nonzero(rollout.mask)
    assert next(divergences) == 0.0


def test_staleness_counts_the_steps_before_the_one_that_a_gradient_is_in(sides: Sides) -> None:
    """Worker 1's gradients are of the first weights; two of its samples are gathered by a step."""
    settings = {"samples_per_step": 15, "envs_per_worker": 3, "rollout_length": 5}
    one, two = sides.two(small_config(**PLAIN, **settings))
    rollout = random_rollout(3)._replace(mask=np.ones((5, 3), np.float32))
    half = random_rollout(4)._replace(mask=np.eye(5, 3, dtype=np.float32))  # three samples
    staleness = [
        side.learner.update(each).metrics["train/staleness"]
        for side, each in ((one, half), (one, rollout), (two, half), (two, rollout))
    ]
    assert staleness == [0, 0, 1, 0]
    assert two.named()["num_updates"] == 2
    assert two.named()["global_step"] == 3 + 15 + 3 + 15


def test_the_staleness_of_an_update_is_the_mean_of_its_gradients(sides: Sides) -> None:
    """Only the first of three gradients was computed with weights from before 12 other steps."""
    one, two = sides.two(small_config(**PLAIN, minibatches=3))
    for seed in range(4):
        two.learner.update(random_rollout(seed))
    assert two.named()["num_updates"] == 12
    assert one.learner.update(random_rollout(5)).metrics["train/staleness"] == 12 / 3


@pytest.mark.parametrize("size", [1e-7, 1.0, 1e4])
def test_half_precision_moves_the_ps_as_full_precision_does(sides: Sides, size: float) -> None:
    """Gradients below, within and above what half precision holds, to a 500th of their norm."""
    rollout = random_rollout(2)
    rewards, values = size * rollout.rewards, size * rollout.values
    scaled = rollout._replace(rewards=rewards, values=values, bootstrap_value=values[0])
    moves = []
    for wire_dtype in ("float32", "float16"):
        settings = small_config(**PLAIN, entropy_weight=0.0, wire_dtype=wire_dtype)
        side = sides.one(settings, {})  # zeros: values and the policy add nothing of their own
        side.learner.update(scaled)
        moves.append(side.named()["value/biases"])
        assert side.learner.reply.parameters.dtype == np.float32
    full, half = moves
    assert abs(full) > 0
    np.testing.assert_allclose(half, full, rtol=2e-3)


def test_bfloat16_gives_the_same_gradient_but_for_its_digits(sides: Sides) -> None:
    rollout = random_rollout(4)
    norms, weights = [], sides.one(SGD).initial
    for compute_dtype in ("float32", "bfloat16"):
        side = sides.one(small_config(**PLAIN, compute_dtype=compute_dtype), weights)
        norms.append(side.learner.update(rollout).metrics["train/gradient_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.03)


def test_a_rollout_waits_until_its_returns_are_complete(sides: Sides) -> None:
    """Then the update is that of the rows whose N steps are there, with returns of N steps.

    The statistics of all returns are pushed with the first complete sample.
    """
    other, side = sides.two(small_config(**PLAIN, return_steps=7, normalize_rewards=True))
    full = np.ones((5, 3), np.float32)
    first, second = (
        random_rollout(seed)._replace(mask=full, return_statistics=np.full(3, 10.0**seed))
        for seed in (0, 1)
    )
    waiting = side.learner.update(first)
    assert (waiting.num_gradients, waiting.is_complete, waiting.metrics) == (0, True, {})
    ones = np.ones_like(waiting.reply.parameters)
    other.store.push(push_of(ones, 9, statistics=np.zeros(3)))
    assert side.learner.update(first).reply.global_step == 9 + 4 * 3
    assert side.learner.update(second).num_gradients == 1
    assert side.learner.reply.global_step == 9 + 4 * 3 + 5 * 3
    np.testing.assert_allclose(side.learner.return_statistics(), [12.0] * 3)


def test_a_winner_puts_the_weights_that_it_played_with_on_the_ps(sides: Sides) -> None:
    """Its own rollouts have no samples, and make no step."""
    goal = {"push_winner": True, "stop_at_return": 10.0, "stop_worker_games": 3}
    one, two = sides.two(small_config(**PLAIN, **goal))
    played = one.learner.reply.parameters
    nothing = random_rollout(1)._replace(mask=np.zeros((5, 3), np.float32))
    moved, kept = [], []
    for returns in ([9.0, 10.0], [10.0], [30.0], [30.0], [1.0]):
        two.learner.update(random_rollout(2))
        on_ps = two.learner.reply.parameters
        games = [Episode(each, 5) for each in returns]
        before = one.learner.reply.parameters
        update = one.learner.update(nothing._replace(episodes=games))
        assert (update.num_gradients, update.is_complete) == (0, True)
        now = update.reply.parameters
        kept.append(bool((now == on_ps).all()))
        moved.append(bool((now == before).all()))
    # 9, 10, 10 miss the goal; 10, 10, 30 reach it; then three games more are needed.
    assert kept == [True, True, False, True, True]
    assert moved == [False, False, True, False, False]
    assert not (one.learner.reply.parameters == played).all()


@pytest.mark.parametrize("statistics", ["shared", "per-worker"])
def test_the_value_loss_may_have_an_optimizer_of_its_own(sides: Sides, statistics: str) -> None:
    """Each loss has statistics, a rate and a clip of its own, in the common weights too."""
    rate, epsilon, clips, scale = 0.1, 0.01, (0.05, 0.02), 0.5
    settings = small_config(
        **{**PLAIN, "optimizer": "rmsprop", "learning_rate": rate, "max_gradient_norm": clips[0]},
        critic_max_gradient_norm=clips[1],
        critic_learning_rate_scale=scale,
        rmsprop_alpha=0.5,
        rmsprop_epsilon=epsilon,
        optimizer_statistics=statistics,
        value_optimizer="own",
        normalize_rewards=True,
    )
    policy_only = small_config(**PLAIN, value_loss_weight=0.0)
    side = sides.one(settings)
    weights = {k: v.astype(np.float64) for k, v in side.agent.parameters().items()}
    squares = [{name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2)]
    for seed in range(2):
        rollout = random_rollout(seed)._replace(return_statistics=np.ones(3))
        whole = gradient_by_differences(weights, rollout, settings)
        policy = gradient_by_differences(weights, rollout, policy_only)
        value = {name: whole[name] - policy[name] for name in whole}
        for part, gradient in enumerate((policy, value)):
            norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
            assert norm > clips[part]
            for name, g in gradient.items():
                clipped = g * clips[part] / norm
                squares[part][name] = 0.5 * squares[part][name] + 0.5 * clipped**2
                size = rate * (scale if part else 1.0)
                weights[name] -= size * clipped / np.sqrt(squares[part][name] + epsilon)
        assert side.learner.update(rollout).metrics["train/staleness"] == 0
        after = side.named()
        for name, expected in weights.items():
            np.testing.assert_allclose(after[name], expected, rtol=1e-3, atol=1e-5)
    assert after["global_step"] == sum(np.count_nonzero(random_rollout(s).mask) for s in range(2))
    np.testing.assert_array_equal(side.learner.return_statistics(), [2.0] * 3)
    kept = statistics == "shared"
    assert ("hidden1/weights/RMSPropValue" in after) is kept
    assert ("hidden1/weights/RMSProp" in after) is kept


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_a_rollout_that_is_not_finite_leaves_no_trace(sides: Sides, poison: float) -> None:
    side, other = sides.two(NORMALISED)
    side.learner.update(random_rollout(0))
    step = other.learner.update(random_rollout(4)).reply.global_step
    before, rollout = side.named(), random_rollout(1)
    rollout.mask[2, 1] = 1
    rollout.rewards[2, 1] = poison
    update = side.learner.update(rollout)
    assert not update.is_complete
    assert update.reply.global_step == step
    assert update.metrics["train/staleness"] == 1  # the other worker's update
    after = side.named()
    for name, value in side.agent.parameters().items():
        np.testing.assert_array_equal(value, after[name])
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
        assert np.isfinite(value).all(), name
    assert side.learner.update(random_rollout(2)).is_complete
    assert other.learner.update(random_rollout(3)).is_complete


@pytest.mark.parametrize("settings", [LIMITED, UNPREDICTED])
def test_with_a_ratio_limit_the_newest_weights_are_learned(sides: Sides, settings: Config) -> None:
    one, two = sides.two(settings)
    for seed in range(3):
        two.learner.update(random_rollout(seed))
    rollout, newest = random_rollout(9), one.named()
    update = one.learner.update(rollout)
    assert update.metrics["train/staleness"] == 0
    expected = loss_by_definition(newest, rollout, settings)
    assert update.metrics["loss/total"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("has_waited", "staleness"), [(True, 0), (False, 1)])
def test_after_a_wait_for_its_turn_a_worker_learns_from_the_newest_weights(
    sides: Sides, monkeypatch: Patch, has_waited: bool, staleness: int
) -> None:
    one, two = sides.two(small_config(**PLAIN, ratio_limit=0.3, workers=2, epochs=2))
    monkeypatch.setattr(one.learner, "_turns", contextlib.nullcontext(has_waited))
    pushes = one.learner.pushes(random_rollout(9))
    next(pushes)
    two.learner.update(random_rollout(1)._replace(mask=np.ones((5, 3), np.float32)))
    made = two.learner.reply.num_updates - one.learner.reply.num_updates
    assert next(pushes).parts["train/staleness"] == staleness * made
    assert made > 0


def test_with_several_workers_the_agent_has_the_weights_of_one_step_later(sides: Sides) -> None:
    # Two updates by the other worker lie between; the mean of all steps since is one step more.
    settings = {"optimizer": "adam", "learning_rate": 0.01, "workers": 2, "envs_per_worker": 1}
    settings |= {"rollout_length": 1, "samples_per_step": 1}  # then every push is a step
    one, two = sides.two(small_config(**settings))
    held = [one.named()]
    for side in (two, two, one):
        side.learner.update(random_rollout(1))
        held.append(one.named())
    steps = {}
    for name, value in one.agent.parameters().items():
        steps[name] = (held[-1][name] - held[0][name]) / (len(held) - 1)
        np.testing.assert_allclose(value, held[-1][name] + steps[name], rtol=1e-4, atol=1e-6)
    assert max(np.abs(step).max() for step in steps.values()) > 1e-3
    assert held[-1]["num_updates"] == len(held) - 1
    # A reply without a new step keeps the last estimate.
    before = one.agent.parameters()
    one.learner.refresh()
    for name, value in one.agent.parameters().items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6)


def test_observations_are_normalised_by_what_all_workers_saw(sides: Sides) -> None:
    one, two = sides.two(NORMALISED)
    everything = []
    for seed, side in enumerate((one, two, one, one, two)):
        rollout = random_rollout(seed, num_steps=30)
        everything.append(rollout.observations[rollout.mask == 1].astype(np.float64))
        side.learner.update(rollout)
    x, saved = np.concatenate(everything), one.named()
    count, total, squares = np.split(one.store.pull().statistics, [1, 4])
    assert count == len(x)
    np.testing.assert_allclose(total / count, x.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(squares / count - (total / count) ** 2, x.var(axis=0), rtol=1e-9)
    plain = agent(small_config())
    plain.load(two.store.pull().parameters, np.zeros(0))
    raw = rollout.observations[0]
    normal = ((raw - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    start = np.zeros((3, 0), np.float32), np.zeros(3, bool)
    found, expected = two.agent.value(raw, *start), plain.value(normal, *start)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    two.learner.update(random_rollout(2))
    one.store.initialize(saved)
    np.testing.assert_array_equal(two.store.pull().statistics, saved["observation_statistics"])


@pytest.mark.parametrize("own", [{}, {"samples_per_step": 10}, {"minibatches": 2}])
def test_moments_of_advantages_run_over_all_workers(sides: Sides, own: dict[str, Any]) -> None:
    own = own | {"advantage_horizon": 100, "normalize_rewards": True}
    one, two = sides.two(small_config(**PLAIN, **own))
    for side, seed in ((one, 1), (two, 2)):
        side.learner.update(random_rollout(seed)._replace(return_statistics=np.ones(3)))
    np.testing.assert_array_equal(two.learner.return_statistics(), [2.0] * 3)
    moments = two.store.pull().advantage_moments
    both = []
    for rollout in map(random_rollout, (1, 2)):
        played = rollout.rewards, rollout.values, rollout.bootstrap_value, rollout.discounts
        both.append(gae(*played, 1.0)[0][rollout.mask > 0].astype(np.float64))
    keeps = [np.exp(-len(part) / 100) for part in both]
    weights = [keeps[1] * (1 - keeps[0]), 1 - keeps[1]]
    wanted = [
        sum(w * power.mean() for w, power in zip(weights, powers, strict=True))
        for powers in ([p**0 for p in both], both, [p**2 for p in both])
    ]
    np.testing.assert_allclose(moments, wanted, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("state_size", [0, 3])
def test_minibatches_mix_samples_but_not_those_with_a_memory(state_size: int, count: int) -> None:
    # Every array says, at each place, which step and environment it is.
    steps, envs, rng = 6, 4, np.random.default_rng(1)
    numbers = np.arange(steps * envs).reshape(steps, envs)
    names = [name for name in Batch._fields if name != "state"]
    rows = {name: numbers + 100.0 * k for k, name in enumerate(names)}
    rows["observations"] = np.stack([numbers, numbers], axis=-1).astype(float)
    state = np.broadcast_to(np.arange(envs)[:, None], (envs, state_size)).astype(np.float32)
    batch = Batch(**rows, state=state)
    found, again = (list(minibatches(batch, count, rng)) for _ in range(2))
    assert len(found) == count
    for part in found:
        offsets = {
            float(offset)
            for name in ("actions", "mask", "policy_parameters")
            for offset in np.unique(getattr(part, name) - part.observations[..., 0])
        }
        assert len(offsets) == 3  # one for each array: rows stayed together
        places = part.observations[..., 0].astype(int)
        if count > 1 and not state_size:
            assert part.mask.shape == (1, steps * envs // count)
            assert part.state.shape == (part.mask.size, 0)
            assert len(set(places[0] % envs)) > 1
            assert len(set(places[0] // envs)) > 1
        elif state_size:
            assert (places // envs == np.arange(steps)[:, None]).all()
            assert (part.state == places[0, :, None] % envs).all()
    everything = np.concatenate([part.observations[..., 0].ravel() for part in found])
    assert sorted(everything) == list(range(steps * envs))
    assert count == 1 or (found[0].observations != again[0].observations).any()


def test_the_events_of_an_update_come_in_order(sides: Sides, monkeypatch: Patch) -> None:
    side, events = sides.one(SGD), list[str]()

    def record(owner: Any, name: str) -> None:
        really = getattr(owner, name)

        def call(*given: Any) -> Any:
            events.append(name)
            return really(*given)

        monkeypatch.setattr(owner, name, call)

    for name in ("act", "value", "gradient", "observation_statistics", "load"):
        record(side.agent, name)
    for name in ("pull", "push"):
        record(side.store, name)
    games = [[Script((1.0, 1.0, *[np.nan] * 9))]]
    envs, short = make_envs(games, AutoresetMode.SAME_STEP, events), small_config(rollout_length=2)
    player = Player(envs, side.agent, side.agent.network.policy, short, seed=1)
    learner = side.join().learner
    for rollout in itertools.islice(player.rollouts(), 2):
        learner.update(rollout)
    play = ["act", "step", "act", "step", "value"]
    push = ["gradient", "observation_statistics", "push", "load"]
    drop = ["gradient", "pull", "load"]
    assert events == ["reset", "pull", "load", *play, *push, *play, *drop]
