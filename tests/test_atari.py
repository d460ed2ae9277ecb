import itertools
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

import envs
from a3c.config import EnvConfig
from a3c.env import atari
from tests import Patch, refused

Envs = VectorEnv[Any, Any, Any]


def make(num_envs: int = 1, render_mode: str | None = None, **settings: Any) -> Envs:
    config = EnvConfig(**{"env_id": "ALE/Pong-v5", **settings})
    return envs.make(config.env_id, num_envs, 0, config, render_mode)


def play(games: Envs, num_steps: int, seed: int = 3) -> list[tuple[Any, ...]]:
    """The results of reset and of `num_steps` random steps, always with the same actions."""
    observations, info = games.reset(seed=seed, options={"without": "a meaning"})
    nothing = np.zeros(len(observations))
    history: list[tuple[Any, ...]] = [(observations, nothing, nothing, nothing, info)]
    games.action_space.seed(0)
    history += [games.step(games.action_space.sample()) for _ in range(num_steps)]
    games.close()
    return history


@pytest.mark.parametrize(
    ("settings", "steps", "least"),
    [
        ({"env_id": "ALE/Pong-v5", "max_episode_steps": 120}, 300, 2),
        ({"env_id": "ALE/Breakout-v5", "num_envs": 2}, 400, 2),
        ({"env_id": "ALE/Seaquest-v5"}, 400, 1),
        ({"env_id": "BreakoutNoFrameskip-v4", "num_envs": 2}, 300, 2),
        ({"env_id": "ALE/Qbert-v5", "frame_skip": 1, "max_episode_steps": 70}, 150, 2),
        ({"fire_on_reset": False, "sticky_actions": 0.6, "frame_stack": 1}, 150, 0),
        ({"env_id": "ALE/Pong-v5", "actions": (0, 2, 3), "frame_skip": 3}, 50, 0),
        ({"env_id": "ALE/Breakout-v5", "env_kwargs": {"full_action_space": True}}, 300, 1),
        ({"env_id": "ALE/Breakout-v5", "env_kwargs": {"continuous": True}}, 300, 1),
        ({"env_id": "ALE/Pong-v5", "preprocessing": "universe", "max_episode_steps": 60}, 200, 3),
        ({"preprocessing": "universe", "env_id": "ALE/Breakout-v5", "num_envs": 2}, 300, 2),
        ({"preprocessing": "universe", "env_id": "ALE/AirRaid-v5", "frame_stack": 1}, 150, 0),
        ({"preprocessing": "cropped", "max_episode_steps": 30}, 70, 2),
        ({"repeat_first_frame": True, "max_episode_steps": 30}, 70, 2),
        ({"preprocessing": "universe", "repeat_first_frame": True, "max_episode_steps": 9}, 20, 2),
    ],
    ids=str,
)
def test_evaluation_plays_just_what_training_did(settings: Any, steps: int, least: int) -> None:
    """All but the number of no-ops, which each of the two implementations draws by itself."""
    settings = {**settings, "noop_max": 0}
    training = play(make(**settings), steps)
    evaluation = play(make(**settings, render_mode="rgb_array"), steps)
    num_ends = 0
    for expected, actual in zip(training, evaluation, strict=True):
        for one, other in zip(expected[:4], actual[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        for key in ("lives", "frame_number", "episode_frame_number"):
            np.testing.assert_array_equal(expected[4][key], actual[4][key])
        for k in np.flatnonzero(np.logical_or(expected[2], expected[3])):
            np.testing.assert_array_equal(expected[4]["final_obs"][k], actual[4]["final_obs"][k])
            num_ends += 1
    assert num_ends >= least


@pytest.mark.parametrize(("preprocessing", "side"), [("universe", 42), ("cropped", 84)])
def test_cropped_frames_are_the_playing_field(preprocessing: str, side: int) -> None:
    keywords: dict[str, Any] = {"img_height": 210, "img_width": 160, "stack_num": 1}
    keywords |= {"autoreset_mode": "SameStep", "repeat_action_probability": 0.0}
    screens = play(gymnasium.make_vec("ALE/Breakout-v5", 1, **keywords), 20)
    frames = play(make(env_id="Breakout-v4", preprocessing=preprocessing, frame_stack=1), 20)
    for (screen, *_), (frame, *_) in zip(screens, frames, strict=True):
        # Blow a side up so that each target pixel covers whole pixels, average them; so both sides.
        rows = screen[0, 0, 34:194].astype(float).repeat(side, axis=0).reshape(side, 160, 160)
        columns = rows.mean(axis=1).repeat(side, axis=1).reshape(side, side, 160)
        assert np.abs(columns.mean(axis=2) - frame[0, 0]).max() <= 0.501


@pytest.mark.parametrize("preprocessing", ["atari", "universe"])
def test_stacks_go_from_old_to_new_after_black_or_the_first_frame(preprocessing: str) -> None:
    settings: dict[str, Any] = {"preprocessing": preprocessing, "max_episode_steps": 5}
    repeated, black = (play(make(2, repeat_first_frame=on, **settings), 12) for on in (True, False))
    for number, ((stack, *_, info), (usual, *_, usual_info)) in enumerate(
        zip(repeated, black, strict=True)
    ):
        first = 3 - min(number % 5, 3)  # of this game's frames in the stack
        np.testing.assert_array_equal(stack[:, first:], usual[:, first:])
        assert usual[:, 3].any(axis=(1, 2)).all()
        assert not usual[:, :first].any()
        assert (stack[:, :first] == stack[:, first : first + 1]).all()
        if "final_obs" in info:
            np.testing.assert_array_equal(info["final_obs"], usual_info["final_obs"])
    for (before, *_), (after, *_, info) in itertools.pairwise(black):
        newest = info.get("final_obs", after)
        np.testing.assert_array_equal(newest[:, :3], before[:, 1:])
        assert newest[:, 3].any(axis=(1, 2)).all()


def test_old_and_new_ids_name_a_game_and_its_stickiness() -> None:
    games = {
        "ALE/Pong-v5": ("pong", 0.25),
        "Pong-v4": ("pong", 0.0),
        "PongNoFrameskip-v0": ("pong", 0.25),
        "MsPacmanNoFrameskip-v4": ("ms_pacman", 0.0),
        "ALE/TicTacToe3D-v5": ("tic_tac_toe_3d", 0.25),
    }
    found = {env_id: atari.find(env_id) for env_id in games}
    assert {i: game and (game.rom, game.stickiness) for i, game in found.items()} == games
    others = ("Pong-v5", "ALE/Pong-v4", "ALE/PongNoFrameskip-v5", "Pong-ram-v4", "Pogn-v4")
    assert not any(atari.find(other) for other in others)


def test_an_environment_of_ones_own_may_have_the_name_of_an_old_game(monkeypatch: Patch) -> None:
    own = gymnasium.registry["CartPole-v1"]
    monkeypatch.setitem(gymnasium.registry, "Tetris-v0", own)
    config = EnvConfig("examples.memory:Tetris-v0")
    assert atari.find(config.env_id) is None
    assert envs.check(config)[0].shape == (4,)


@pytest.mark.parametrize(
    ("settings", "sticky"),
    [
        ({"env_id": "ALE/Pong-v5"}, True),
        ({"env_id": "PongDeterministic-v4", "preprocessing": "universe"}, False),
        ({"env_id": "Pong-v0", "preprocessing": "none"}, True),
        ({"env_id": "Pong-v4", "preprocessing": "none"}, False),
        ({"env_id": "ALE/Pong-v5", "sticky_actions": 0.0}, False),
        ({"env_id": "PongNoFrameskip-v4", "sticky_actions": 0.25}, True),
    ],
)
def test_only_sticky_actions_make_equal_actions_differ(settings: Any, sticky: bool) -> None:
    games = make(2, noop_max=0, **settings)
    games.reset(seed=1)
    for action in np.random.default_rng(0).integers(6, size=40):
        observations, *_ = games.step(np.array([action, action]))
    assert (observations[0] != observations[1]).any() == sticky


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_a_seed_settles_a_game_and_each_copy_has_its_own(render_mode: str | None) -> None:
    settings: dict[str, Any] = {"num_envs": 2, "render_mode": render_mode, "max_episode_steps": 10}
    one, same, other = (play(make(**settings), 25, seed) for seed in (4, 4, 5))
    for (left, *_), (right, *_) in zip(one, same, strict=True):
        np.testing.assert_array_equal(left, right)
    # Copy k of seed s is copy k - 1 of seed s + 1.
    np.testing.assert_array_equal(one[0][0][1:], other[0][0][:-1])
    assert len(set(one[0][4]["frame_number"].tolist())) > 1
    assert (one[-1][0] != other[-1][0]).any()


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_no_ops_stay_below_their_maximum_and_differ(render_mode: str | None) -> None:
    games = make(1, render_mode, frame_skip=1, fire_on_reset=False, noop_max=4)
    infos = [games.reset(seed=seed)[1] for seed in range(12)]
    played = {int(info["episode_frame_number"][0]) for info in infos}
    assert len(played) > 1
    assert max(played) - min(played) <= 3


def test_a_lost_life_is_seen_but_ends_nothing() -> None:
    history = play(make(env_id="ALE/Breakout-v5", episodic_life=True), 150)
    lives = np.array([info["lives"] for *_, info in history])
    lost = lives[1:] < lives[:-1]
    ended = np.array([terminations for _, _, terminations, *_ in history[1:]])
    assert lives[0].tolist() == [5]
    assert lost.any()
    assert not ended[lost].any()


@pytest.mark.parametrize(
    ("preprocessing", "render_mode"), [("atari", None), ("atari", "rgb_array"), ("none", None)]
)
def test_the_game_limit_is_in_env_steps(preprocessing: str, render_mode: str | None) -> None:
    settings: dict[str, Any] = {"frame_skip": 3, "max_episode_steps": 7}
    history = play(make(1, render_mode, preprocessing=preprocessing, **settings), 15)
    truncations = [int(truncated[0]) for _, _, _, truncated, _ in history[1:]]
    assert truncations == [0, 0, 0, 0, 0, 0, 1] * 2 + [0]


def test_a_game_that_ends_at_the_limit_has_terminated() -> None:
    settings: dict[str, Any] = {"env_id": "BreakoutNoFrameskip-v4", "frame_skip": 1, "noop_max": 0}
    length = [bool(end[2][0]) for end in play(make(1, **settings), 1200)].index(True)
    for render_mode in (None, "rgb_array"):
        *_, last = play(make(1, render_mode, **settings, max_episode_steps=length), length)
        assert last[2].tolist() == [True]
        assert last[3].tolist() == [False]


def test_one_thread_steps_all_games_and_others_games_dont_change_the_reset_mode() -> None:
    process = psutil.Process()
    before = process.num_threads()
    games = make(4)
    assert process.num_threads() == before + 1
    gymnasium.make_vec("ALE/Pong-v5", 1).close()
    assert games.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    games.close()


def test_modes_and_difficulties_are_played() -> None:
    plain = make(env_id="ALE/Breakout-v5")
    other = make(env_id="ALE/Breakout-v5", env_kwargs={"mode": 8, "difficulty": 1})
    assert plain.single_observation_space == other.single_observation_space
    assert (play(plain, 20)[-1][0] != play(other, 20)[-1][0]).any()


def test_unknown_game_keywords_are_refused_and_known_ones_listed() -> None:
    said = "^env_kwargs colour: .* full_action_space, mode$"
    refused(said, make, env_kwargs={"colour": True})
    games = make(preprocessing="none", env_kwargs={"obs_type": "ram", "frameskip": 2})
    assert games.single_observation_space.shape == (128,)
