"""Schedules: exact at their ends, monotone between, the same for everyone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c.config import Config, LearningConfig, RunConfig, command_line
from a3c.config.options import OPTIONS
from a3c.learn import schedules


def make_config(seed: int = 1, **learning: Any) -> Config:
    learning.setdefault("anneal_steps", 1000)
    return replace(Config(), run=RunConfig(seed=seed), learning=LearningConfig(**learning))


def annealed(config: Config, *env_steps: int) -> list[tuple[float, ...]]:
    """The learning rate, entropy weight, ratio limit and chance of random actions, after each."""
    return [schedules.after(config, steps) for steps in env_steps]


def test_settings_without_an_end_never_change() -> None:
    config = make_config(learning_rate=0.1, entropy_weight=0.02, ratio_limit=0.2)
    assert set(annealed(config, 0, 500, 999, 10**9)) == {(0.1, 0.02, 0.2, 0.0)}


def test_every_schedule_is_linear_between_its_own_ends_and_stays_there() -> None:
    config = make_config(
        learning_rate=0.5,
        learning_rate_schedule="linear",
        entropy_weight=0.25,
        entropy_weight_final=0.75,
        ratio_limit=1.0,
        ratio_limit_final=0.0,
        epsilon_greedy=0.125,
        epsilon_greedy_final=0.0,
    )
    assert annealed(config, 0, 250, 500, 1000, 5000) == [
        (0.5, 0.25, 1.0, 0.125),
        (0.375, 0.375, 0.75, 0.09375),
        (0.25, 0.5, 0.5, 0.0625),
        *[(0.0, 0.75, 0.0, 0.0)] * 2,
    ]
    config = make_config(epsilon_greedy=0.55, epsilon_greedy_final=0.01)
    assert schedules.after(config, 1000).epsilon == 0.01  # 0.55 + (0.01 - 0.55) is not


@pytest.mark.parametrize("name", ["epsilon", "entropy_weight", "ratio_limit"])
def test_a_schedule_may_have_a_window_of_its_own(name: str) -> None:
    setting = "epsilon_greedy" if name == "epsilon" else name
    window = name.removesuffix("_weight") + "_anneal"
    own: dict[str, Any] = {setting: 1.0, f"{setting}_final": 0.0, f"{window}_steps": 200}
    own |= {"learning_rate": 1.0, "learning_rate_schedule": "linear"}
    config = make_config(anneal_start=100, **own)

    def values(config: Config, *steps: int) -> list[float]:
        return [getattr(schedules.after(config, each), name) for each in steps]

    assert values(config, 100, 150, 200, 900) == [1.0, 0.5, 0.0, 0.0]
    assert schedules.after(config, 550).learning_rate == 0.5
    late = make_config(anneal_start=100, **own, **{f"{window}_start": 0})
    assert values(late, 0, 100, 200) == [1.0, 0.5, 0.0]


@given(seed=st.integers(0, 2**31 - 1), low=st.floats(1e-9, 1.0), factor=st.floats(1.0, 100.0))
def test_a_drawn_learning_rate_is_the_same_everywhere(seed: int, low: float, factor: float) -> None:
    drawn: Any = {"seed": seed, "learning_rate_range": (low, low * factor)}
    config = make_config(**drawn)
    rate = config.initial_learning_rate
    assert low <= rate <= low * factor
    assert schedules.after(config, 0).learning_rate == rate
    halved = make_config(**drawn, learning_rate_schedule="linear")
    assert schedules.after(halved, 500).learning_rate == pytest.approx(rate / 2)
    assert make_config(**drawn, rollout_length=7).initial_learning_rate == rate


def test_a_flag_replaces_what_a_preset_says_otherwise() -> None:
    flags = ["--env-id", "CartPole-v1", "--preset", "paper-ff", "--learning-rate", "0.001"]
    config, _ = command_line.parse_config(flags, "test", "test")
    assert config.initial_learning_rate == 0.001
    config, _ = command_line.parse_config([*flags, "--envs", "64"], "test", "test")
    assert config.share.envs == 4, "and all environments those of each of 16 workers"
    flags = ["--env-id", "ALE/Pong-v5", "--env-kwargs", '{"full_action_space": true}']
    config, _ = command_line.parse_config(flags, "test", "test")
    assert config.env.actions == (), "and a set of actions the numbers of some in another"


def test_a_value_below_the_final_one_of_a_preset_stays_as_it_is() -> None:
    own = ["--entropy-weight", "0", "--learning-rate", "2e-5", "--ratio-limit", "0.02"]
    config, _ = command_line.parse_config(["--preset", "pong", *own], "test", "test")
    for env_steps in (0, 10**9):
        assert schedules.after(config, env_steps)[:3] == (2e-5, 0.0, 0.02)
    config, _ = command_line.parse_config(["--preset", "pong"], "test", "test")
    assert schedules.after(config, 10**9).entropy_weight > 0
    drawn = ["--preset", "pong", "--learning-rate-range", "1e-5", "5e-5"]
    config, _ = command_line.parse_config(drawn, "test", "test")
    assert schedules.after(config, 10**9).learning_rate == config.initial_learning_rate
    without = ["--preset", "breakout", "--ratio-limit", "0", "--epochs", "1"]
    config, _ = command_line.parse_config(without, "test", "test")
    assert schedules.after(config, 10**9).ratio_limit == 0
    config = command_line.merge([{"epsilon_greedy_final": 0.1}, {"epsilon_greedy": 0.0}])
    assert schedules.after(config, 10**9).epsilon == 0


def test_annealed_settings_have_the_names_of_options() -> None:
    names = {field.replace("epsilon", "epsilon_greedy") for field in schedules.Annealed._fields}
    assert names <= OPTIONS.keys(), "--resume shows how their present values change"


@pytest.mark.parametrize("preset", command_line.preset_names())
def test_a_preset_still_learns_in_a_run_that_is_ten_times_as_long(preset: str) -> None:
    usual = command_line.merge([command_line.read_preset(preset)])
    long = replace(usual, run=replace(usual.run, max_env_steps=10 * usual.run.max_env_steps))
    assert schedules.after(long, 9 * usual.run.max_env_steps).learning_rate > 0


def test_drawn_learning_rate_is_the_same_in_every_release() -> None:
    config = make_config(seed=1, learning_rate_range=(1e-4, 1e-2))
    assert config.initial_learning_rate == pytest.approx(0.0025510578941147963, rel=1e-12)
