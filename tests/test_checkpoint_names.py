"""What the ps holds under its own names and under those of checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from a3c.server.checkpoint_names import by_parameter, by_shard
from a3c.server.layout import Layout, cut

SHAPES = {"conv/weights": (3, 4), "value/weights": (5,), "policy/biases": (2,)}
SCALARS = {"global_step": np.array(7), "Adam/beta1_power": np.array(0.5)}


def is_value(name: str) -> bool:
    return name.startswith("value")


def held_by(layout: Layout) -> dict[str, np.ndarray]:
    """Everything on the ps of a run with Adam, every number another one."""
    held: dict[str, np.ndarray] = {"global_step": SCALARS["global_step"]}
    for number, slot in enumerate(("", "Adam", "Adam_1")):
        flat = 100.0 * number + np.arange(layout.num_parameters)
        for shard, part in zip(layout.shards, layout.split(flat), strict=True):
            held[f"{shard.name}/{slot}" if slot else shard.name] = part
            held[f"counters/{shard.name}/Adam/beta1_power"] = SCALARS["Adam/beta1_power"]
    return held


LAYOUTS = [cut(SHAPES, num_ps, apart) for num_ps in (1, 3) for apart in (is_value, lambda _: False)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_name_parameters_and_their_slots(layout: Layout) -> None:
    named = by_parameter(held_by(layout), layout)
    slots = {f"{name}/{slot}" for name in SHAPES for slot in ("Adam", "Adam_1")}
    assert named.keys() == {*SHAPES, *slots, *SCALARS}
    assert all(named[f"{name}/Adam"].shape == shape for name, shape in SHAPES.items())
    np.testing.assert_array_equal(named["conv/weights/Adam_1"], named["conv/weights"] + 200)


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_a_run_goes_on_with_another_number_of_ps_and_another_critic_rate(
    before: Layout, after: Layout
) -> None:
    named = by_parameter(held_by(before), before)
    held = by_shard(named, after, held_by(after))
    assert held.keys() == held_by(after).keys()
    again = by_parameter(held, after)
    assert again.keys() == named.keys()
    for name, value in named.items():
        np.testing.assert_array_equal(again[name], value)


def test_what_is_not_given_is_left_alone() -> None:
    layout = LAYOUTS[0]
    parameters = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    held = by_shard({**parameters, "global_step": np.array(3)}, layout, held_by(layout))
    assert held.keys() == {"parameters_0", "parameters_1", "global_step"}


@pytest.mark.parametrize("wrong", ["conv", "conv/weights/Momentum", "global_steps"])
def test_what_the_ps_does_not_have_is_refused_by_name(wrong: str) -> None:
    layout = LAYOUTS[0]
    with pytest.raises(KeyError, match=wrong):
        by_shard({wrong: np.zeros(())}, layout, held_by(layout))


def test_a_part_of_a_vector_is_refused_by_what_is_missing() -> None:
    layout = LAYOUTS[0]
    with pytest.raises(KeyError, match="policy/biases"):
        by_shard({"conv/weights": np.zeros((3, 4))}, layout, held_by(layout))
