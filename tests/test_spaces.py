"""Observations of many parts, and action masks, from the environment to the loss."""

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envs
import model
from a3c.config import EnvConfig
from a3c.env.spaces import Packed, as_actions, choice_sizes, pack
from a3c.learn.agent import Agent
from a3c.learn.rollout import Player
from a3c.net import observations
from a3c.play.playground import EvaluationSetup
from a3c.plot import network_pictures
from a3c.run.tensorboard import Pictures, TensorBoardSink
from tests import Patch, refused
from tests.clusters import agent, batch_of, rows, small_config, untrained, worker
from tests.graphs import run
from tests.runs import REPOSITORY
from tests.test_tensorboard import shown

FLOATS = spaces.Box(-1.0, 1.0, (2, 3), np.float64)
GREY = spaces.Box(0, 255, (6, 5), np.uint8)
PLANES = spaces.Box(0, 255, (3, 6, 5), np.uint8)  # channels first
SCREEN = spaces.Box(0, 255, (20, 20, 1), np.uint8)
BIT = spaces.Discrete(2, start=4)
VECTORS = [
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [5, -2]])),
    spaces.MultiBinary([2, 2]),
    spaces.Tuple([FLOATS, spaces.Dict({"b": spaces.Discrete(4), "a": spaces.MultiBinary(3)})]),
    spaces.Dict({"z": spaces.Box(-1.0, 1.0, ()), "few": spaces.Box(0, 9, (2,), np.int64)}),
]
MASKED = [
    (spaces.Discrete(4, start=3), [4]),
    (spaces.MultiDiscrete([3, 2], start=[7, 0]), [3, 2]),
    (spaces.MultiBinary(2), [2, 2]),
]


class Odd(gymnasium.Env[Any, Any]):
    """Any spaces; allows one to all actions of each choice, and fails if a forbidden one comes."""

    def __init__(self, observed: Any, actions: Any = BIT, as_tuple: bool = False) -> None:
        self.observation_space, self.action_space = observed, actions
        self._as_tuple = as_tuple
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        indices = np.ravel(action - getattr(self.action_space, "start", 0))
        for index, mask in zip(indices, self._mask, strict=True):
            assert mask[index], f"{action} is forbidden by {self._mask}"
        self._t += 1
        observed, info = self._observe()
        return observed, 1.0, False, self._t == 3, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self._mask = [self._some(size) for size in choice_sizes(self.action_space)]
        mask: Any = tuple(self._mask) if self._as_tuple else np.concatenate(self._mask)
        return self.observation_space.sample(), {"action_mask": mask}

    def _some(self, size: int) -> np.ndarray:
        mask = self.np_random.integers(2, size=size).astype(np.int8)
        mask[self.np_random.integers(size)] = 1
        return mask


def copies(*arguments: Any, mode: Any = AutoresetMode.SAME_STEP, num: int = 3, **more: Any) -> Any:
    raw = SyncVectorEnv([lambda: Odd(*arguments)] * num, autoreset_mode=mode)
    return pack(raw, EnvConfig(env_id="Odd-v0", **more))


@pytest.fixture(autouse=True)
def odd() -> Iterator[None]:
    gymnasium.register("Odd-v0", Odd, disable_env_checker=True)  # type: ignore[arg-type]
    yield
    del gymnasium.registry["Odd-v0"]


@pytest.mark.parametrize("space", VECTORS, ids=str)
def test_vectors_of_any_kind_become_what_gymnasium_flattens_them_to(space: Any) -> None:
    made = copies(space)
    observed, _ = made.reset(seed=1)
    reference = SyncVectorEnv([lambda: Odd(space)] * 3)
    reference.reset(seed=1)
    flat = [np.asarray(spaces.flatten(space, one)) for one in reference._env_obs]
    np.testing.assert_allclose(observed, flat, rtol=1e-6)
    assert made.single_observation_space == spaces.Box(-np.inf, np.inf, flat[0].shape, np.float32)
    assert made.observation_space.contains(observed)


def prepared(space: Any, raw: np.ndarray, statistics: Any = None) -> list[np.ndarray]:
    """The image and the vector that a network gets of observations `[B, ...]`."""

    def build() -> Any:
        ready = observations.prepare(tf.constant(raw)[None], space, statistics)
        return [part for part in observations.split(ready, space) if part is not None]

    return run(build)


@pytest.mark.parametrize("image", [GREY, PLANES], ids=["grey", "planes"])
def test_an_image_alone_stays_and_beside_a_vector_is_prepared_like_it(image: spaces.Box) -> None:
    lone = copies(spaces.Dict({"screen": image}))
    assert lone.single_observation_space is image
    assert lone.reset(seed=1)[0].dtype == np.uint8
    made = copies(spaces.Dict({"a": FLOATS, "screen": image, "z": BIT}), action_masks=True)
    observed, _ = made.reset(seed=1)
    raw = made.env._observations
    space = made.single_observation_space
    of_image = observations.moments(raw["screen"][None], np.ones((1, 3)), image)
    of_all = observations.moments(observed[None], np.ones((1, 3)), space)
    np.testing.assert_array_equal(of_all[: len(of_image)], of_image)
    assert of_all.shape == (observations.statistics_size(space),)
    of_all[len(of_image)] = 0  # too few samples to normalise the vector by
    for statistics in (None, of_all):
        pixels, vector = prepared(space, observed, statistics)
        mine = None if statistics is None else of_image
        alone = prepared(image, raw["screen"], mine)[0]
        np.testing.assert_allclose(pixels, alone, rtol=1e-5, atol=1e-6)
        expected = np.hstack([raw["a"].reshape(3, 6), raw["z"][:, None] == [4, 5]])
        np.testing.assert_allclose(vector[0], expected, rtol=1e-6)


@pytest.mark.parametrize("network", ["a3c-lstm", "my_parts:build", "examples.own_network:build"])
def test_image_and_vector_each_matter(network: str, tmp_path: Path, monkeypatch: Patch) -> None:
    page = (REPOSITORY / "docs" / "environments.md").read_text()
    (tmp_path / "my_parts.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    made = copies(spaces.Tuple([SCREEN, FLOATS]), num=2, action_masks=True)
    space = made.single_observation_space
    actor = agent(small_config(network=network), space, BIT)
    observed, _ = made.reset(seed=1)
    state, starts = actor.initial_state(1), np.ones(1, bool)

    def value(column: int) -> float:
        changed = observed[:1].copy()
        changed[0, column] = 1 - changed[0, column]
        return float(actor.value(changed, state, starts)[0])

    there, mask = actor.value(observed[:1], state, starts)[0], observed.shape[1] - 1
    assert value(0) != there
    assert value(mask - 2) != there
    assert value(mask) == there


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_final_observations_are_packed_and_masks_are_of_the_next_action(mode: Any) -> None:
    made = copies(spaces.Tuple([GREY, FLOATS]), MASKED[1][0], mode=mode, action_masks=True)
    observed, info = made.reset(seed=1)
    sizes = choice_sizes(MASKED[1][0])
    for t in range(1, 12):
        masks = np.split(observed[:, -5:], np.cumsum(sizes)[:-1], axis=1)
        if mode != AutoresetMode.NEXT_STEP or t % 4:  # else this step only resets
            np.testing.assert_array_equal(observed[:, -5:], info["action_mask"])
        actions = as_actions(MASKED[1][0], np.stack([m.argmax(1) for m in masks], 1))
        observed, _, _, truncated, info = made.step(actions)
        if truncated.any() and mode == AutoresetMode.SAME_STEP:
            last = np.stack(info["final_obs"])
            assert last.shape == observed.shape
            assert last[:, -5:].all()
        if truncated.any() and mode == AutoresetMode.DISABLED:
            before, only = observed.copy(), np.array([True, False, False])
            observed, _ = made.reset(options={"reset_mask": only})
            np.testing.assert_array_equal(observed[1:, -5:], before[1:, -5:])
            return


def test_a_game_that_is_reset_alone_and_gives_no_mask_may_take_any_action() -> None:
    made = copies(FLOATS, action_masks=True, mode=AutoresetMode.DISABLED)
    made._masks[:] = [True, False]
    nothing = {"action_mask": np.zeros((3, 2)), "_action_mask": np.zeros(3, bool)}
    answer = made.env.observation_space.sample(), nothing
    with mock.patch.object(made.env, "reset", return_value=answer):
        observed, _ = made.reset(options={"reset_mask": np.array([True, False, False])})
    assert observed[:, -2:].tolist() == [[1, 1], [1, 0], [1, 0]]


def masked_agent(actions: Any) -> tuple[Any, Agent, Any]:
    config = small_config(
        env_id="Odd-v0", action_masks=True, envs_per_worker=3, rollout_length=40, ratio_limit=0.2
    )
    made = copies(FLOATS, actions, action_masks=True)
    return made, agent(config, made.single_observation_space, actions), config


def entropy(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The entropy of the softmax over the allowed logits, `[..., size]` to `[...]`."""
    weights = np.exp(logits.astype(np.float64)) * mask
    chances = weights / weights.sum(-1, keepdims=True)
    return -(chances * np.log(np.where(mask, chances, 1.0))).sum(-1)


@pytest.mark.parametrize(
    ("actions", "epsilon"), [(MASKED[0][0], 0.0), (MASKED[1][0], 0.5), (MASKED[2][0], 0.0)], ids=str
)
def test_forbidden_actions_are_neither_played_nor_learned(actions: Any, epsilon: float) -> None:
    made, actor, config = masked_agent(actions)
    policy, sizes = actor.network.policy, choice_sizes(actions)
    rollout = next(Player(made, actor, policy, config, seed=1, epsilon=lambda: epsilon).rollouts())
    mask, logits = rollout.observations[..., -sum(sizes) :] > 0, rollout.policy_parameters
    assert not mask.all()
    np.testing.assert_array_equal(logits < -1e7, ~mask)
    ones = np.ones_like(rollout.mask)
    batch = batch_of(actor, **rollout._asdict(), advantages=ones, returns=ones)
    gradient = actor.gradient(batch, 0.01, 0.2)
    assert gradient.is_finite
    choices = (np.split(array, np.cumsum(sizes)[:-1], axis=-1) for array in (logits, mask))
    expected = sum(entropy(*choice) for choice in zip(*choices, strict=True))
    assert gradient.parts["loss/entropy"] == pytest.approx(np.mean(expected), rel=1e-4)
    if not epsilon:  # the weights are those that played
        assert gradient.parts["loss/divergence"] == pytest.approx(0.0, abs=1e-5)
        assert gradient.parts["loss/policy"] == pytest.approx(-1.0, abs=1e-5)


def test_random_actions_are_uniform_among_those_allowed_and_so_is_their_probability() -> None:
    policy = masked_agent(MASKED[1][0])[1].network.policy
    row = np.array([0.5, -1e8, 2.0, 0.0, -1e8], np.float32)
    parameters = np.tile(row, (3000, 1))
    drawn = policy.random_actions(np.random.default_rng(0), parameters)
    assert set(map(tuple, drawn.tolist())) == {(0, 0), (2, 0)}
    assert abs((drawn[:, 0] == 0).mean() - 0.5) < 0.03
    log = run(lambda: policy.random_log_probability(tf.constant(parameters), drawn))
    np.testing.assert_allclose(log, -math.log(2))


def test_masks_may_be_missing_empty_or_tuples_but_of_no_other_size() -> None:
    made = copies(FLOATS, action_masks=True)
    made.reset(seed=1)
    made._masks[:] = False
    made._read_masks({"action_mask": np.array([[0, 0], [0, 1], [0, 1]]), "_action_mask": [1, 1, 0]})
    assert made._masks.tolist() == [[True, True], [False, True], [True, True]]
    what = r"mask of shape \(3,\), but its actions need \(2,\): fix"
    refused(what, made._read_masks, {"action_mask": np.ones((3, 3))})
    made = copies(FLOATS, MASKED[1][0], True, action_masks=True)
    observed, info = made.reset(seed=1)
    expected = [np.concatenate(given) for given in info["action_mask"]]
    np.testing.assert_array_equal(observed[:, -5:], expected)


def test_masks_follow_the_actions_that_are_selected() -> None:
    given = {"observed": FLOATS, "actions": MASKED[0][0]}
    config = EnvConfig(env_id="Odd-v0", env_kwargs=given, actions=(6, 4), action_masks=True)
    observed, info = envs.make("Odd-v0", 4, 0, config).reset(seed=1)
    np.testing.assert_array_equal(observed[:, -2:].any(axis=1), True)
    both = np.stack(info["action_mask"])[:, [3, 1]]
    rows = both.any(axis=1)
    assert rows.any()
    np.testing.assert_array_equal(observed[rows, -2:], both[rows])


def test_a_loaded_agent_obeys_the_masks(tmp_path: Path) -> None:
    given: dict[str, Any] = {"observed": spaces.Tuple([GREY, FLOATS]), "actions": MASKED[0][0]}
    gymnasium.spec("Odd-v0").kwargs.update(given)
    loaded = untrained(tmp_path, env_id="Odd-v0", action_masks=True)
    env = loaded.make_env()
    observed, info = env.reset(seed=1)
    for t in range(20):
        chosen = loaded.act(observed, greedy=bool(t % 2))
        chances: Any = chosen.probabilities
        np.testing.assert_array_equal(chances > 0, info["action_mask"] > 0)
        assert chances.sum() == pytest.approx(1.0)
        observed, _, _, truncated, info = env.step(chosen.action)
        if truncated:
            observed, info = env.reset()
    env.close()


@pytest.mark.parametrize("beside", [[], [FLOATS]], ids=["alone", "beside a vector"])
def test_pictures_show_an_image_alone_and_beside_a_vector(beside: Any, tmp_path: Path) -> None:
    gymnasium.spec("Odd-v0").kwargs["observed"] = spaces.Tuple([SCREEN, *beside])
    config = small_config(env_id="Odd-v0", network="a3c-ff", action_masks=bool(beside))
    setup = EvaluationSetup(config, envs.make, model.build, 1)
    with closing(setup.envs(1)) as played:
        actor = setup.agent(played)
        for name in ("filters", "saliency"):
            assert network_pictures.draw(name, setup, played, actor, 0).axes
        sink = TensorBoardSink(tmp_path)
        space: Any = played.single_observation_space
        observed, _ = played.reset(seed=1)
        Pictures(sink, space).offer(1, observed[None])
    (image,) = shown(tmp_path).Images("input/observation")
    assert (image.height, image.width) == (20, 20)


def test_observations_that_no_network_takes_are_refused_in_one_line() -> None:
    cases: list[tuple[Any, str]] = [
        (spaces.Text(5), "has Text observations: networks take .*; change them with a --wrapper"),
        (spaces.Sequence(BIT), "has Sequence observations: networks"),
        (spaces.OneOf([BIT, FLOATS]), "has OneOf observations: networks"),
        (spaces.Graph(FLOATS, None), "has Graph observations: networks"),
        (spaces.Dict({"a": BIT, "b": spaces.Tuple([spaces.Text(5)])}), "Text .* in b.0: networks"),
        (spaces.Dict({"a": GREY, "b": PLANES}), "observes 2 images, a, b: networks take one; keep"),
        (spaces.Discrete(2_000_000_000), "2,000,000,000 numbers, Discrete ones one-hot: at most"),
        (spaces.Dict({}), "has empty observations"),
        (spaces.Dict({"a": spaces.Box(0, 1, (0, 8, 3)), "b": BIT}), "has empty observations"),
    ]
    for observed, what in cases:
        given = EnvConfig(env_id="Odd-v0", env_kwargs={"observed": observed})
        refused(f"^env_id Odd-v0 .*{what}", envs.check, given)


@pytest.mark.parametrize("wrong", [spaces.Text(5), spaces.Tuple([PLANES])], ids=["text", "image"])
def test_the_remedy_for_one_part_can_be_used_as_it_is(wrong: Any) -> None:
    given = {"observed": spaces.Dict({"a": GREY, "b": wrong, "c": BIT})}
    config = EnvConfig(env_id="Odd-v0", env_kwargs=given)
    *_, flag, value = shlex.split(refused("--wrapper", envs.check, config))
    assert flag == "--wrapper"
    space, _ = envs.check(dataclasses.replace(config, wrapper=(json.loads(value),)))
    assert space.shape == (6 * 5 + 2,)


def test_the_check_plays_an_allowed_action() -> None:
    for size in range(3, 8):
        given = {"observed": FLOATS, "actions": spaces.Discrete(size, start=size)}
        space, _ = envs.check(EnvConfig(env_id="Odd-v0", env_kwargs=given, action_masks=True))
        assert isinstance(space, Packed)


def test_an_image_beside_a_number_is_learned_with_masks(tmp_path: Path) -> None:
    config = small_config(
        env_id="examples.doors:Doors-v0",
        env_kwargs={"side": 2},
        action_masks=True,
        envs=16,
        workers=1,
        hidden_sizes=[64, 64],
        gamma=0.9,
        learning_rate=2e-3,
        rollout_length=16,
        epochs=3,
        ratio_limit=0.2,
        max_env_steps=50_000,
        stop_at_return=0.8,
        evaluation_episodes=0,
    )
    worker(config, tmp_path).run()
    means = [row.get("cluster/mean_return_100", 0.0) for row in rows(tmp_path)]
    assert max(means) > 0.5  # 0 at random, and without the image or the vector
