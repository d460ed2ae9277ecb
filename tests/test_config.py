"""The settings themselves: defaults, the rules between them, and the way to JSON and back."""

import json
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from a3c import config as settings
from a3c.config import MAX_ENVS, Config, Share, command_line
from a3c.config.options import OPTIONS, Option
from a3c.launch.run_summary import sharing
from tests.clusters import config

TEXTS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20)
WORDS = st.text(max_size=5)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
JSON_TABLES = st.dictionaries(WORDS, JSON, max_size=3)

# More minibatches and epochs need other settings; schedules must end after they start.
CERTAIN: dict[str, Any] = {
    **dict.fromkeys(("minibatches", "epochs"), 1),
    **dict.fromkeys(("kl_limit", "value_clip"), 0.0),
    **{f"{which}anneal_start": 0 for which in ("", "epsilon_", "entropy_", "ratio_limit_")},
    **dict.fromkeys(("optimizer_statistics", "value_optimizer"), "shared"),
    **dict.fromkeys(("return_steps", "stop_worker_games", "render_worker")),
    "push_winner": False,
}


def number(option: Option, kind: type) -> st.SearchStrategy[Any]:
    lowest, highest, above = option.field.metadata["limits"]
    low = lowest if above is None else above
    if kind is int:
        return st.integers(0 if low is None else low, highest or 2**62)
    return st.floats(low, highest, exclude_min=above is not None).filter(math.isfinite)


def setting(option: Option) -> st.SearchStrategy[Any]:
    if option.name == "learning_rate_range":
        rates = st.lists(number(option, float), min_size=2, max_size=2).map(sorted)
        return st.just([]) | rates
    if option.name in CERTAIN:
        return st.just(CERTAIN[option.name])
    if option.name == "envs":  # all may be one worker's
        return st.integers(1, MAX_ENVS)
    if option.name == "ratio_limit_final":  # for a ratio limit only
        return st.none()
    if option.name == "heartbeat_timeout_s":
        longest = OPTIONS["ps_timeout_s"].field.metadata["limits"][1]
        return st.none() | st.floats(longest, option.field.metadata["limits"][1], exclude_min=True)
    if option.name == "max_workers":
        return st.none() | st.just(OPTIONS["workers"].field.metadata["limits"][1])
    if option.is_repeatable:
        own = JSON_TABLES.map(lambda arguments: {**arguments, "name": "a.b:C"})
        return st.lists(own if option.is_user_code else TEXTS, max_size=3)
    if option.is_list:
        min_size = 1 if option.name == "hidden_sizes" else 0
        return st.lists(number(option, option.kind), min_size=min_size, max_size=4, unique=True)
    if option.choices:
        return st.sampled_from(option.choices)
    plain = {bool: st.booleans(), str: TEXTS, dict: JSON_TABLES}
    values = plain[option.kind] if option.kind in plain else number(option, option.kind)
    return st.none() | values if option.optional else values


@st.composite
def tables(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True, max_size=8))
    made: dict[str, dict[str, Any]] = {}
    for name in names:
        option = OPTIONS[name]
        made.setdefault(option.section, {})[name] = draw(setting(option))
    return made


@given(tables())
def test_a_configuration_comes_back_from_json_bit_for_bit_and_from_flags(drawn: Any) -> None:
    before = command_line.merge([command_line.from_tables(drawn, "test")])
    text = json.dumps(settings.to_dict(before), allow_nan=False)
    after = command_line.from_dict(json.loads(text), "test")
    assert repr(after) == repr(before)  # repr tells 1 from 1.0 and 0.0 from -0.0
    again, arguments = command_line.parse_config(command_line.to_flags(before), "prog", "about")
    assert (again, arguments.preset) == (before, None)


def test_the_identity_is_what_the_variables_of_a_checkpoint_depend_on() -> None:
    same = config(seed=9, learning_rate=0.1, workers=7, envs_per_worker=3, ps=2, reward_clip=1.0)
    assert settings.identity(same) == settings.identity(Config())
    for name, value in {
        "env_id": "CartPole-v1",
        "frame_stack": 2,
        "actions": [0, 1],
        "env_kwargs": {"a": 1},
        "normalize_observations": True,
        "network": "nature",
        "hidden_sizes": [3],
        "optimizer": "sgd",
    }.items():
        assert settings.identity(config(**{name: value})) != settings.identity(Config()), name
    json.dumps(settings.identity(Config()))


def test_schedules_run_over_the_whole_run_unless_told() -> None:
    assert set(config(max_env_steps=123).windows.values()) == {(0, 123)}
    assert set(config(max_env_steps=123, anneal_steps=7).windows.values()) == {(0, 7)}


TASK = {"envs": 4, "rollout_length": 32, "shortest_rollout": 16}
PONG = {"envs": 16, "rollout_length": 128}
SMALL, LARGE = ({**PONG, "samples_per_step": n} for n in (64, 256))


def test_workers_share_the_environments_and_then_the_steps() -> None:
    cases: list[tuple[Any, Share]] = [
        ({"workers": 1, **TASK}, Share(4, 32, 1)),
        ({"workers": 2, **TASK}, Share(2, 32, 1)),
        ({"workers": 4, **TASK}, Share(1, 32, 1)),
        ({"workers": 8, **TASK}, Share(1, 16, 1)),
        ({"workers": 64, **TASK}, Share(1, 16, 1)),
        # A rollout gets no shorter unless that is allowed.
        ({"workers": 16, **TASK, "shortest_rollout": None}, Share(1, 32, 1)),
        ({"workers": 64, **TASK, "shortest_rollout": None}, Share(1, 32, 2)),
        ({"workers": 64, **TASK, "rollout_length": 8}, Share(1, 8, 1)),
        # What the user says of one worker wins.
        ({"workers": 16, **TASK, "envs_per_worker": 4, "minibatches": 2}, Share(4, 32, 2)),
        # A push is a worker's share of a step of 256 samples, but not too small.
        *[({"workers": n, **LARGE}, Share(16 // n, 128, 8)) for n in (1, 4)],
        ({"workers": 16, **LARGE}, Share(1, 128, 2)),
        ({"workers": 64, **LARGE}, Share(1, 128, 8)),
        ({"workers": 64, **LARGE, "smallest_push": 64}, Share(1, 128, 2)),
        # Pushes get smaller, down to 16, where 64 would make steps larger than the setting.
        ({"workers": 4, **SMALL}, Share(4, 128, 8)),
        ({"workers": 8, **SMALL}, Share(2, 128, 8)),
        *[({"workers": n, **SMALL}, Share(1, 128, 8)) for n in (16, 64)],
        ({"workers": 2, **SMALL, "samples_per_step": 16}, Share(8, 128, 64)),
        ({"workers": 16, **SMALL, "smallest_push": 64}, Share(1, 128, 2)),
        # Where every push is a step, a rollout is one push.
        ({"workers": 2, **PONG, "samples_per_step": 0}, Share(8, 128, 1)),
    ]
    assert [(task, config(**task).share) for task, _ in cases] == cases


def test_several_workers_that_gather_adam_steps_predict_weights() -> None:
    assert config(workers=2).loads_predicted_weights
    for others in (
        *({"workers": 1}, {"optimizer": "rmsprop"}, {"samples_per_step": 0}),
        *({"predict_weights": False}, {"wire_dtype": "float16"}),
        {"push_winner": True, "stop_at_return": 9.0},
    ):
        assert not config(**{"workers": 2, **others}).loads_predicted_weights, others


def test_breakout_is_the_atari_preset_with_a_goal() -> None:
    atari, breakout = (command_line.read_preset(name) for name in ("atari", "breakout"))
    del breakout["env_id"], breakout["stop_at_return"]
    assert breakout == atari


def test_without_a_number_of_workers_there_are_no_more_than_at_most() -> None:
    assert command_line.merge([{"max_workers": 1}]).cluster.workers == 1
    most = settings.ClusterConfig.workers + 1
    assert command_line.merge([{"max_workers": most}]).cluster.workers == most - 1


def test_steps_hold_more_samples_where_gradients_are_too_old() -> None:
    """Pushes of 16 samples: one of each worker makes no more than four steps."""
    for workers, samples in {1: 128, 8: 128, 32: 128, 64: 256, 256: 1024}.items():
        assert config(workers=workers, **TASK).samples_per_step == samples
        assert config(workers=workers, **TASK, samples_per_step=0).samples_per_step == 0


def test_gradients_of_a_network_with_a_memory_are_no_older() -> None:
    """A push holds whole environments; the step grows if one of each worker is too much."""
    for workers in (2, 16, 64):
        made = config(workers=workers, **PONG, samples_per_step=128).for_recurrent()
        assert made.share == Share(max(1, 16 // workers), 128, max(1, 16 // workers))
        assert made.samples_per_step == max(128, workers * 128 // 4)


def test_no_limit_of_a_decay_or_an_epsilon_is_1_or_0_in_float32() -> None:
    for option in OPTIONS.values():
        lowest, highest, _ = option.field.metadata["limits"]
        if option.name.startswith(("adam_", "rmsprop_")) and option.name.endswith("epsilon"):
            assert np.float32(lowest) > 0, option.name
        elif option.name in ("adam_beta1", "adam_beta2", "rmsprop_alpha", "rmsprop_momentum"):
            assert np.float32(highest) < 1, option.name


def test_the_share_is_said_in_one_line() -> None:
    assert sharing(config(workers=16, **TASK)) == (
        "each worker plays 1 environment × 16 steps; 128 samples a step of the optimizer, 16 a push"
    )
    assert sharing(config(workers=2, envs=2, rollout_length=5, samples_per_step=0)) == (
        "each worker plays 1 environment × 5 steps; every push is a step, 5 a push"
    )
    assert sharing(config(workers=16, **PONG, samples_per_step=128, network="mlp-lstm")) == (
        "each worker plays 1 environment × 128 steps; 512 samples a step of the optimizer, "
        "128 a push"
    )
    smaller = TASK | {"samples_per_step": 7, "smallest_push": 16}  # a step has a push at least
    assert sharing(config(workers=2, **smaller)).endswith(
        "; 16 samples a step of the optimizer, 16 a push"
    )
    own = {"network": "mine:build", "workers": 16}  # it may have a memory
    assert sharing(config(**PONG, samples_per_step=128, **own)) == (
        "each worker plays 1 environment × 128 steps"
    )
    assert sharing(config(**TASK, **own)).endswith("16 a push")
