"""Rollouts from games that go as written, in all three ways in which environments reset."""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from hypothesis import given, settings
from hypothesis import strategies as st

from a3c.config import LearningConfig, user_code
from a3c.env import seeding
from a3c.errors import PlayError
from a3c.learn.returns import gae, n_step, return_deviation
from a3c.learn.rollout import Autoreset, EnvironmentErrors, FixedStepReturns, Player, Rollout
from a3c.net.distributions import for_space
from a3c.process.signals import Leaving
from a3c.run.metrics import Episode
from tests.clusters import agent, batch_of, config
from tests.scripted import (
    ACTIONS,
    NUM_ACTIONS,
    OBSERVATIONS,
    Script,
    ScriptedActor,
    ScriptedEnv,
    drawn_from,
    make_envs,
    random_rollout,
    value_of,
)

MODES = list(AutoresetMode)
GAMMA = 0.5
TWO_LIVES = Script((1.0, 2.0, 4.0, 8.0), lives=(2, 1, 1, 0))
in_all_modes = pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])


def play(
    scripts: Sequence[Sequence[Script]],
    mode: AutoresetMode,
    *,
    actor: Any = None,
    envs: VectorEnv[Any, Any, Any] | None = None,
    epsilon: float = 0.0,
    hooks: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Rollout]:
    """Copies of the rollouts of scripted games, for ever; `hooks` are further ones of `Player`."""
    chosen = config(**{"gamma": GAMMA, "network": "mlp", **settings})
    player = Player(
        envs or make_envs(scripts, mode),
        actor or ScriptedActor(),
        for_space(ACTIONS, chosen.network),
        chosen,
        seed=1,
        epsilon=lambda: epsilon,
        **hooks or {},
    )
    for rollout in player.rollouts():
        yield copy.deepcopy(rollout)


def rows(rollout: Rollout, b: int = 0) -> list[int]:
    return np.flatnonzero(rollout.mask[:, b]).tolist()


class JaxLike:
    """An array that makes NumPy's sums arrays of its own kind."""

    __array_priority__ = 100

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return np.array([1.0, 2.0])

    def __radd__(self, _: Any) -> Any:
        return self


def test_rewards_may_be_arrays_of_another_library() -> None:
    reset = Autoreset(make_envs([[Script((1.0,))], [Script((1.0,))]], AutoresetMode.SAME_STEP))
    rewards: Any = JaxLike()
    assert not reset.count(rewards, np.array([False, False]))
    ended = reset.count(rewards, np.array([False, True]))
    assert ended == [(1, Episode(4.0, 2))]
    assert reset.returns.tolist() == [2.0, 0.0]


@in_all_modes
def test_a_rollout_is_t_by_b_and_starts_where_the_last_one_ended(mode: AutoresetMode) -> None:
    rollouts = play([[Script((1.0,) * 50)]] * 2, mode, rollout_length=3)
    for k, rollout in enumerate(itertools.islice(rollouts, 4)):
        shapes = {name: np.shape(v) for name, v in rollout._asdict().items()}
        del shapes["episodes"], shapes["info"], shapes["return_statistics"]
        assert shapes.pop("observations") == (3, 2, 3)
        assert shapes.pop("bootstrap_value") == shapes.pop("next_starts") == (2,)
        assert shapes.pop("next_observations") == (2, 3)
        assert shapes.pop("state") == (2, 1)
        assert shapes.pop("policy_parameters") == (3, 2, NUM_ACTIONS)
        assert set(shapes.values()) == {(3, 2)}
        assert rollout.observations[:, 1, 2].tolist() == [3 * k, 3 * k + 1, 3 * k + 2]
        assert rollout.actions[:, 0].tolist() == [t % NUM_ACTIONS for t in range(3 * k, 3 * k + 3)]
        assert rollout.starts[:, 0].tolist() == [k == 0, False, False]
        np.testing.assert_array_equal(rollout.discounts, np.full((3, 2), GAMMA))
        following = np.array([[b, 0, 3 * k + 3] for b in range(2)])
        np.testing.assert_array_equal(rollout.next_observations, following)
        expected = value_of(following, np.array(3 * k + 4))
        np.testing.assert_allclose(rollout.bootstrap_value, expected)


def test_only_the_mode_of_the_next_step_has_dead_transitions() -> None:
    games = [[Script((1.0, 2.0)), Script((3.0,))]]
    for mode, mask, starts in (
        (AutoresetMode.NEXT_STEP, [1, 1, 0, 1, 0, 1], [1, 0, 0, 1, 0, 1]),
        (AutoresetMode.SAME_STEP, [1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1]),
        (AutoresetMode.DISABLED, [1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1]),
    ):
        rollout = next(play(games, mode, rollout_length=6))
        assert rollout.mask[:, 0].tolist() == mask
        assert rollout.starts[:, 0].tolist() == [bool(start) for start in starts]


@in_all_modes
@pytest.mark.parametrize("learned", [{}, {"reward_clip": 2.0, "reward_scale": 0.5}], ids=str)
def test_truncation_bootstraps_from_final_observation(mode: AutoresetMode, learned: Any) -> None:
    """The value that is added is neither scaled nor clipped."""
    ends = ("truncated", "terminated", "both")
    games = [*([Script((1.0, 8.0), end)] for end in ends), [Script((1.0,) * 9)]]
    rollout = next(play(games, mode, rollout_length=3, **learned))
    first, second = (0.5, 2.0) if learned else (1.0, 8.0)
    final = float(value_of(np.array([0, 0, 2]), np.array(3)))  # after the observations 0 and 1
    np.testing.assert_allclose(rollout.rewards[0], first)
    np.testing.assert_allclose(rollout.rewards[1], [second + GAMMA * final, second, second, first])
    np.testing.assert_array_equal(rollout.discounts[:2].T, [*[[GAMMA, 0.0]] * 3, [GAMMA] * 2])


def test_the_value_of_a_cut_is_added_in_its_own_rollout_only() -> None:
    games = [[Script((1.0, 2.0), "truncated"), Script((3.0,) * 9)]]
    rollouts = play(games, AutoresetMode.SAME_STEP, rollout_length=2)
    assert next(rollouts).rewards[1, 0] != 2.0
    assert next(rollouts).rewards[:, 0].tolist() == [3.0, 3.0]


REWARDS = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=4).map(tuple)
ENDS = st.sampled_from(["terminated", "truncated", "both"])
SCRIPTS = st.builds(Script, REWARDS, ENDS, st.just(()))
GAMES = st.lists(st.lists(SCRIPTS, min_size=1, max_size=3), min_size=1, max_size=3)


def targets(rollout: Rollout, lambda_: float) -> list[list[tuple[Any, ...]]]:
    """By environment, what each row of a finished episode teaches."""
    advantages, returns = gae(
        rollout.rewards, rollout.values, rollout.bootstrap_value, rollout.discounts, lambda_
    )
    parts = rollout.actions, rollout.starts, rollout.values, advantages, returns
    taught = []
    for b in range(rollout.mask.shape[1]):
        trained = rows(rollout, b)
        finished = max((t for t in trained if rollout.discounts[t, b] == 0), default=-1)
        done = [t for t in trained if t <= finished]
        taught.append([(*rollout.observations[t, b], *(p[t, b] for p in parts)) for t in done])
    return taught


@given(GAMES, st.sampled_from([0.0, 0.7, 1.0]))
@settings(max_examples=30)
def test_the_same_games_teach_the_same_in_all_three_modes(games: Any, lambda_: float) -> None:
    rollouts = [next(play(games, mode, rollout_length=16)) for mode in MODES]
    taught = [targets(rollout, lambda_) for rollout in rollouts]
    for b in range(len(games)):
        shortest = min(len(of_mode[b]) for of_mode in taught)
        assert shortest >= 4
        np.testing.assert_allclose(taught[0][b][:shortest], taught[1][b][:shortest], rtol=1e-6)
        np.testing.assert_allclose(taught[0][b][:shortest], taught[2][b][:shortest], rtol=1e-6)


@given(GAMES)
@settings(max_examples=30)
def test_the_same_games_are_reported_the_same_in_all_three_modes(games: list[list[Script]]) -> None:
    reported = []
    for mode in MODES:
        rollouts = itertools.islice(play(games, mode, rollout_length=5), 6)
        reported.append([episode for rollout in rollouts for episode in rollout.episodes])
    wanted = [[Episode(sum(s.rewards), len(s.rewards)) for s in scripts] for scripts in games]
    for episodes in reported:
        assert set(episodes) <= set(itertools.chain(*wanted))
    assert reported[1] == reported[2]
    assert len(games) > 1 or reported[0] == reported[1][: len(reported[0])]


@in_all_modes
def test_returns_are_raw_and_of_whole_games_whatever_learning_sees(mode: AutoresetMode) -> None:
    games = [[Script((10.0, -20.0, 0.25)), Script((4.0,))]]
    rollouts = play(games, mode, rollout_length=2, reward_clip=1.0, reward_scale=0.5)
    learned: list[float] = []
    episodes: list[Episode] = []
    for rollout in itertools.islice(rollouts, 3):
        learned += rollout.rewards[:, 0][rollout.mask[:, 0] == 1].tolist()
        episodes += rollout.episodes
    assert learned[:4] == [1.0, -1.0, 0.125, 1.0]
    assert episodes[:2] == [Episode(-9.75, 3), Episode(4.0, 1)]


class PoisonedResets(VectorWrapper[Any, Any, Any, Any, Any]):
    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        self._ended = np.zeros(envs.num_envs, bool)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        rewards = np.where(self._ended, np.nan, rewards)
        self._ended = terminated | truncated
        return observations, rewards, terminated, truncated, info


def test_a_dead_transition_adds_nothing_to_returns_lengths_or_targets() -> None:
    games = [[Script((1.0, 2.0)), Script((3.0,), "truncated")]]
    clean = next(play(games, AutoresetMode.NEXT_STEP, rollout_length=9))
    poisoned = PoisonedResets(make_envs(games, AutoresetMode.NEXT_STEP))
    rollout = next(play(games, AutoresetMode.NEXT_STEP, rollout_length=9, envs=poisoned))
    assert np.isnan(rollout.rewards).any()
    assert rollout.episodes == clean.episodes == [Episode(3.0, 2), Episode(3.0, 1)] * 2
    assert targets(rollout, 0.9) == targets(clean, 0.9)
    assert (rollout.discounts[rollout.mask == 0] == 0).all()


@in_all_modes
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_game_without_a_finite_score_is_not_reported(mode: AutoresetMode, poison: float) -> None:
    games = [[Script((1.0, poison, 1.0)), Script((2.0, 3.0))]]
    assert set(next(play(games, mode, rollout_length=12)).episodes) == {Episode(5.0, 2)}


@in_all_modes
def test_a_lost_life_ends_the_return_but_no_game_and_only_if_asked(mode: AutoresetMode) -> None:
    rollout = next(play([[TWO_LIVES]], mode, rollout_length=5, episodic_life=True))
    assert rollout.discounts[:4, 0].tolist() == [GAMMA, 0.0, GAMMA, 0.0]
    assert rollout.rewards[:4, 0].tolist() == [1.0, 2.0, 4.0, 8.0]
    assert rollout.starts[:4, 0].tolist() == [True, False, False, False]
    assert rollout.episodes == [Episode(15.0, 4)]
    rollout = next(play([[TWO_LIVES]], mode, rollout_length=4))
    assert rollout.discounts[:, 0].tolist() == [GAMMA, GAMMA, GAMMA, 0.0]


@in_all_modes
def test_lives_say_nothing_about_those_of_another_or_the_next_game(mode: AutoresetMode) -> None:
    """Gymnasium puts 0 for a game that doesn't say, as when only others are reset."""
    mute, short = Script((1.0,) * 9), Script((1.0,), lives=(4,))
    fewer = [Script((1.0,) * 2, lives=(5, 5)), Script((1.0,) * 3, lives=(2, 2, 2))]
    games = [[TWO_LIVES], [short], [Script((1.0,) * 5, lives=(3, 3, 3, 2, 2))], [mute], fewer]
    rollout = next(play(games, mode, rollout_length=6, episodic_life=True))
    assert rollout.discounts[:4, 0].tolist() == [GAMMA, 0.0, GAMMA, 0.0]
    assert rollout.discounts[:4, 2].tolist() == [GAMMA, GAMMA, GAMMA, 0.0]
    assert rollout.discounts[:4, 3].tolist() == [GAMMA] * 4
    assert rollout.discounts[rows(rollout, 4), 4].tolist()[:5] == [GAMMA, 0.0, GAMMA, GAMMA, 0.0]
    fewer[0] = fewer[0]._replace(end="truncated")
    with_lives, without = (
        next(play([fewer], mode, rollout_length=2, episodic_life=is_on)).rewards.tolist()
        for is_on in (True, False)
    )
    assert with_lives == without != [[1.0], [1.0]], "the value after a time limit counts"


@in_all_modes
def test_state_is_carried_across_rollouts_and_not_moved_by_value_calls(mode: AutoresetMode) -> None:
    games = [[Script((1.0,) * 5, "truncated"), Script((1.0,) * 50)]]
    rollouts = list(itertools.islice(play(games, mode, rollout_length=2), 6))
    memory = 0.0
    for rollout in rollouts:
        assert rollout.state[0, 0] == memory
        for t in range(2):
            memory = (0.0 if rollout.starts[t, 0] else memory) + 1
            wanted = value_of(rollout.observations[t, 0], np.array(memory))
            assert rollout.values[t, 0] == np.float32(wanted)
            drawn = drawn_from(rollout.values[t])
            np.testing.assert_array_equal(rollout.policy_parameters[t], drawn)
    assert rollouts[1].state[0, 0] == 2.0


class ForgetfulActor(ScriptedActor):
    """Its state turns to NaN in the second environment, once."""

    calls = 0

    def act(self, observations: np.ndarray, state: np.ndarray, starts: np.ndarray) -> Any:
        action = super().act(observations, state, starts)
        self.calls += 1
        if self.calls == 3:
            action.state[1] = np.nan
        return action


def test_a_state_that_is_not_finite_is_forgotten_before_the_next_rollout() -> None:
    games = [[Script((1.0,) * 50)]] * 3
    rollouts = play(games, MODES[0], rollout_length=4, actor=ForgetfulActor())
    one, two = next(rollouts), next(rollouts)
    assert np.isnan(one.values[3, 1])
    assert two.state[:, 0].tolist() == [4.0, 0.0, 4.0]
    assert np.isfinite(two.values).all()


@in_all_modes
@pytest.mark.parametrize("separate_value", [False, True])
def test_learning_sees_what_acting_saw(mode: AutoresetMode, separate_value: bool) -> None:
    """With returns set to the values of acting, the value loss of the learning pass is 0.

    With advantages of 1 the loss of the policy is minus the mean of the ratios, which are all 1.
    """
    network = {"network": "mlp-lstm", "hidden_sizes": [4], "lstm_size": 5}
    chosen = config(**network, separate_value=separate_value, rollout_length=6, ratio_limit=0.2)
    actor = agent(chosen, OBSERVATIONS, ACTIONS, seed=3)
    games = [[Script((1.0,) * 4), Script((1.0,), "truncated")], [Script((1.0,) * 9, "truncated")]]
    player = Player(make_envs(games, mode), actor, actor.network.policy, chosen, seed=1)
    for rollout in itertools.islice(player.rollouts(), 4):
        given = {"returns": rollout.values, "advantages": np.ones_like(rollout.mask)}
        batch = batch_of(actor, **rollout._asdict(), **given)
        parts = actor.gradient(batch, 0.0, 0.2).parts
        assert parts["loss/value"] < 1e-12
        assert parts["loss/policy"] == pytest.approx(-1.0, abs=1e-5)
        forgetful = batch._replace(starts=~rollout.starts)
        assert actor.gradient(forgetful, 0.0, 0.2).parts["loss/value"] > 1e-8
    assert np.abs(rollout.state).max() > 1e-3


class Drawing(ScriptedEnv):
    """Draws as many random numbers a step as exploration does."""

    def __init__(self) -> None:
        super().__init__(0, [Script((1.0,) * 99)], [])
        self.actions: list[int] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        gymnasium.Env.reset(self, seed=seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.actions.append(int(self.np_random.random(1 + NUM_ACTIONS)[1:].argmax()))
        return super().step(action)


def test_exploration_does_not_draw_the_numbers_of_the_first_environment() -> None:
    env = Drawing()
    envs = SyncVectorEnv([lambda: env], autoreset_mode=MODES[0])
    rollout = next(play([], MODES[0], envs=envs, rollout_length=20, epsilon=1.0))
    assert rollout.actions[:, 0].tolist() != env.actions


def chosen_actions(epsilon: float) -> np.ndarray:
    """Many actions where the actor would always take 0."""
    games = [[Script((0.0,), "terminated")]] * 8
    rollout = next(play(games, AutoresetMode.SAME_STEP, rollout_length=250, epsilon=epsilon))
    assert (rollout.epsilon == epsilon).all()
    return rollout.actions.ravel()


def test_the_seed_reaches_the_global_generators_and_only_environments_draw_from_them() -> None:
    next(play([[Script((1.0,))] * 9] * 2, AutoresetMode.SAME_STEP, epsilon=0.5))
    drawn = random.gauss(0.0, 1.0), np.random.random()
    seeding.seed_global_generators(1)
    assert drawn == (random.gauss(0.0, 1.0), np.random.random())


def test_epsilon_replaces_that_share_of_actions_by_any_equally_often() -> None:
    assert not chosen_actions(0.0).any()
    other = np.count_nonzero(chosen_actions(0.25)) / 2000
    assert abs(other - 0.25 * (NUM_ACTIONS - 1) / NUM_ACTIONS) < 0.04
    counts = np.bincount(chosen_actions(1.0), minlength=NUM_ACTIONS)
    expected = counts.sum() / NUM_ACTIONS
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in 1,000 seeds
    assert len(counts) == NUM_ACTIONS


def test_a_rollout_is_abandoned_within_an_env_step_when_it_is_not_to_go_on() -> None:
    go_on = mock.Mock(side_effect=[True] * 6 + [False])
    games = [[Script((1.0,) * 99)]]
    assert len(list(play(games, MODES[0], rollout_length=5, hooks={"go_on": go_on}))) == 1
    assert go_on.call_count == 7


def test_what_was_played_is_what_is_stored() -> None:
    class Recording(gymnasium.vector.VectorActionWrapper[Any, Any, Any, Any]):
        played: list[list[int]] = []  # noqa: RUF012 one test, one list

        def actions(self, actions: Any) -> Any:
            self.played.append(actions.tolist())
            return actions

    envs = Recording(make_envs([[Script((0.0,) * 9)]] * 3, MODES[0]))
    rollout = next(play([], MODES[0], envs=envs, rollout_length=8, epsilon=0.5))
    assert rollout.actions.tolist() == envs.played


@in_all_modes
def test_rewards_are_divided_by_the_deviation_of_the_returns_so_far(mode: AutoresetMode) -> None:
    """Games of 7 and of 11 steps, so that a return goes on over the end of a rollout."""
    games = [[Script(tuple(map(float, range(size))))] for size in (7, 11)]
    known = np.array([200.0, 300.0, 2500.0])
    chosen: dict[str, Any] = {"rollout_length": 60, "reward_scale": 0.5}
    plain = play(games, mode, **chosen)
    chosen |= {"normalize_rewards": True, "hooks": {"return_statistics": lambda: known}}
    so_far = np.zeros(2)
    for want, rollout in itertools.islice(zip(plain, play(games, mode, **chosen), strict=True), 2):
        totals = []
        for t in range(60):
            so_far = 2 * want.rewards[t] + GAMMA * so_far
            totals += [so_far[b] for b in range(2) if want.mask[t, b]]
            so_far[want.discounts[t] == 0] = 0.0
        seen = np.array([len(totals), np.sum(totals), np.square(totals).sum()])
        np.testing.assert_allclose(rollout.return_statistics, seen)
        count, total, squares = known + seen
        deviation = np.sqrt(squares / count - (total / count) ** 2)
        np.testing.assert_allclose(rollout.rewards, want.rewards / deviation, rtol=1e-5)


def test_few_returns_or_bad_ones_change_no_rewards() -> None:
    games = [[Script((1.0, np.nan, 5.0) * 30)]]
    plain, normal = (
        next(play(games, AutoresetMode.SAME_STEP, rollout_length=80, normalize_rewards=chosen))
        for chosen in (False, True)
    )
    np.testing.assert_array_equal(plain.rewards, normal.rewards)
    assert normal.return_statistics.tolist() == [1.0, 1.0, 1.0]
    assert return_deviation(np.array([99, 0, 990.0])) == 1.0
    assert return_deviation(np.array([100, 0, 400.0])) == pytest.approx(2.0)


def test_a_bad_reward_is_forgotten_with_its_rollout() -> None:
    games = [[Script((1.0, np.nan, *[1.0] * 98))]]
    rollouts = play(games, AutoresetMode.SAME_STEP, rollout_length=5, normalize_rewards=True)
    assert [next(rollouts).return_statistics[0] for _ in range(3)] == [1, 5, 5]


class FlagsOfOtherTypes(VectorWrapper[Any, Any, Any, Any, Any]):
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        return observations, rewards, terminated.astype(np.int8), truncated.tolist(), info


@in_all_modes
def test_flags_of_any_type_end_games(mode: AutoresetMode) -> None:
    games = [[Script((1.0, 2.0), "terminated")], [Script((1.0,) * 3, "truncated")]]
    usual = next(play(games, mode, rollout_length=9))
    other = next(play([], mode, envs=FlagsOfOtherTypes(make_envs(games, mode)), rollout_length=9))
    assert other.episodes == usual.episodes
    for name in ("mask", "discounts", "rewards", "starts"):
        np.testing.assert_array_equal(getattr(other, name), getattr(usual, name))


class Changed(VectorWrapper[Any, Any, Any, Any, Any]):
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, *results, info = self.env.step(actions)
        info.pop("final_obs", None)
        return observations[:, : 3 if results[2].any() else 2], *results, info


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ((1.0,), "ValueError: info lacks final_obs: give the last observations there"),
        ((1.0, 1.0), "ValueError: observations of shape (1, 2): give (1, 3) as `reset`"),
    ],
)
def test_a_vector_environment_that_breaks_its_promises_is_named(rewards: Any, said: str) -> None:
    mode = AutoresetMode.SAME_STEP
    envs = Changed(make_envs([[Script(rewards, "truncated")]], mode))
    with pytest.raises(PlayError) as raised:
        next(play([], mode, envs=envs, rollout_length=1))
    assert str(raised.value).endswith(said)


def test_a_signal_is_no_error_of_the_code_that_it_interrupts() -> None:
    leaving = mock.Mock(side_effect=Leaving(130))
    with pytest.raises(Leaving), EnvironmentErrors():
        leaving()
    with pytest.raises(Leaving), user_code.as_user_error("network mine:build"):
        leaving()
    with mock.patch("importlib.import_module", leaving), pytest.raises(Leaving):
        user_code.import_module("mine", "network mine:build")


PER_STEP = [
    *("observations", "actions", "rewards", "discounts", "values", "mask", "starts"),
    *("policy_parameters", "epsilon"),
]


@given(
    seed=st.integers(0, 99),
    steps=st.integers(1, 9),
    least=st.integers(1, 20),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_a_game_in_pieces_gives_the_samples_of_the_whole_game_once(
    seed: int, steps: int, least: int, lengths: list[int]
) -> None:
    learning = LearningConfig(return_steps=steps, return_min_samples=least, gae_lambda=0.8)
    edges = np.cumsum([0, *lengths]).tolist()
    whole, again = (random_rollout(seed, num_steps=edges[-1]) for _ in range(2))
    fixed_steps, pieces, done = FixedStepReturns(learning), [], 0
    for first, last in itertools.pairwise(edges):
        after = np.concatenate([whole.values, whole.bootstrap_value[None]])[last]
        rows = {name: getattr(whole, name)[first:last] for name in PER_STEP}
        played = whole._replace(**rows, bootstrap_value=after)
        rollout, advantages, returns = fixed_steps.complete(played)
        rollout = rollout._replace(**{name: getattr(rollout, name).copy() for name in PER_STEP})
        for name in PER_STEP:  # the player reuses its arrays
            getattr(played, name)[...] = 0
        assert len(rollout.mask) == len(advantages) == len(returns)
        # All rows that have their steps come at once, as soon as they have enough samples.
        ready = slice(done, max(0, last - steps + 1))
        enough = np.count_nonzero(again.mask[ready]) >= least
        assert len(returns) == (len(again.mask[ready]) if enough else 0)
        done += len(returns)
        pieces.append((rollout, advantages, returns))
    of_whole = again.rewards, again.values, again.bootstrap_value, again.discounts
    for index, one in enumerate(n_step(*of_whole, 0.8, steps), start=1):
        found = np.concatenate([piece[index] for piece in pieces])
        np.testing.assert_array_equal(found, one[:done])
    for name in PER_STEP:
        found = np.concatenate([getattr(rollout, name) for rollout, _, _ in pieces])
        np.testing.assert_array_equal(found, getattr(again, name)[:done])
