"""Hypothesis strategies for settings: any value that an option takes, and any layer of them."""

import math
from typing import Any

from hypothesis import strategies as st

from a3c.config.command_line import OPTIONS, Layer, Option

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
    "minibatches": 1,
    "epochs": 1,
    "kl_limit": 0.0,
    "value_clip": 0.0,
    "anneal_start": 0,
    "epsilon_anneal_start": 0,
    "entropy_anneal_start": 0,
    "ratio_limit_anneal_start": 0,
    "optimizer_statistics": "shared",
    "value_optimizer": "shared",
    "return_steps": None,
    "push_winner": False,
    "stop_worker_games": None,
    "render_worker": None,
}


def number(option: Option, kind: type) -> st.SearchStrategy[Any]:
    limits = option.field.metadata
    above = limits["above"]
    low = limits["low"] if above is None else above
    if kind is int:
        return st.integers(0 if low is None else low, limits["high"] or 2**62)
    return st.floats(low, limits["high"], exclude_min=above is not None).filter(math.isfinite)


def setting(option: Option) -> st.SearchStrategy[Any]:
    if option.name == "learning_rate_range":
        rates = st.lists(number(option, float), min_size=2, max_size=2).map(sorted)
        return st.just([]) | rates
    if option.name in CERTAIN:
        return st.just(CERTAIN[option.name])
    if option.name == "ratio_limit_final":  # for a ratio limit only
        return st.none()
    if option.name == "heartbeat_timeout_s":
        longest = OPTIONS["ps_timeout_s"].field.metadata["high"]
        return st.none() | st.floats(longest, option.field.metadata["high"], exclude_min=True)
    if option.name == "max_workers":
        return st.none() | st.just(OPTIONS["workers"].field.metadata["high"])
    if option.is_repeatable:
        own = JSON_TABLES.map(lambda arguments: {**arguments, "name": "a.b:C"})
        return st.lists(own if option.is_own_code else TEXTS, max_size=3)
    if option.is_list:
        min_size = 1 if option.name == "hidden_sizes" else 0
        return st.lists(number(option, option.kind), min_size=min_size, max_size=4, unique=True)
    if option.choices:
        return st.sampled_from(option.choices)
    plain = {bool: st.booleans(), str: TEXTS, dict: JSON_TABLES}
    values = plain[option.kind] if option.kind in plain else number(option, option.kind)
    return st.none() | values if option.optional else values


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True, max_size=8))
    layer: Layer = {}
    for name in names:
        option = OPTIONS[name]
        layer.setdefault(option.section, {})[name] = draw(setting(option))
    return layer
