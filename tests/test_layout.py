"""The place of each parameter: ps, position in the vector, and name in checkpoints."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c.server.layout import Layout, by_parameter, by_shard, cut
from tests import refused

SHAPES = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
    min_size=4,
    max_size=9,
).map(lambda shapes: dict(sorted(shapes.items(), key=lambda item: is_separate(item[0]))))


def is_separate(name: str) -> bool:
    return name.startswith("b")


def sizes_by_ps(layout: Layout, num_ps: int) -> list[int]:
    return [sum(shard.size for shard in layout.shards if shard.ps == i) for i in range(num_ps)]


def test_parameters_with_a_rate_of_their_own_are_last_and_are_cut_by_themselves() -> None:
    layout = cut({"a": (2,), "c": (3,), "b": (4,)}, 2, is_separate)
    assert [*layout.shapes] == ["a", "c", "b"]
    with pytest.raises(AssertionError):
        cut({"a": (2,), "b": (4,), "c": (3,)}, 2, is_separate)
    assert [(s.ps, s.start, s.stop, s.separate) for s in layout.shards] == [
        *((0, 0, 2, False), (1, 2, 5, False)),
        *((0, 5, 7, True), (1, 7, 9, True)),
    ]


def test_more_ps_than_parameters_are_refused() -> None:
    shapes = dict.fromkeys("abc", (1,))
    assert sizes_by_ps(cut(shapes, 3), 3) == [1, 1, 1]
    refused("^--ps 4 is too many: the network has 3 parameters", cut, shapes, 4)
    said = "has 4 parameters, 2 of them of the value alone"
    refused(said, cut, dict.fromkeys("abcd", (1,)), 3, lambda name: name in "cd")


@given(SHAPES, st.integers(1, 4), st.booleans())
def test_shards_cover_every_parameter_once_and_evenly(
    shapes: dict[str, tuple[int, ...]], num_ps: int, has_separate: bool
) -> None:
    own = is_separate if has_separate else lambda _: False
    parts = [sum(math.prod(shapes[n]) for n in shapes if own(n) == part) for part in (False, True)]
    num_ps = min(num_ps, max(parts))  # with more, ps 0 would get none
    layout = cut(shapes, num_ps, own)
    assert layout.shapes == shapes
    assert layout.shards[0].start == 0
    assert layout.shards[-1].stop == layout.num_parameters == sum(map(math.prod, shapes.values()))
    assert all(a.stop == b.start for a, b in itertools.pairwise(layout.shards))
    sizes = sizes_by_ps(layout, num_ps)
    assert max(sizes) - min(sizes) <= 1 + has_separate


NAMED = {"conv/weights": (3, 4), "policy/biases": (2,), "value/weights": (5,)}
SCALARS = {"global_step": np.array(7), "Adam/beta1_power": np.array(0.5)}


def held_by(layout: Layout) -> dict[str, np.ndarray]:
    """Everything on the ps of a run with Adam, every number another one."""
    held: dict[str, np.ndarray] = {"global_step": SCALARS["global_step"]}
    for number, slot in enumerate(("", "Adam", "Adam_1")):
        flat = 100.0 * number + np.arange(layout.num_parameters)
        for shard in layout.shards:
            part = flat[shard.start : shard.stop]
            held[f"{shard.name}/{slot}" if slot else shard.name] = part
            held[f"counters/{shard.name}/Adam/beta1_power"] = SCALARS["Adam/beta1_power"]
    return held


SEPARATE = (lambda name: name.startswith("value"), lambda _: False)
LAYOUTS = [cut(NAMED, num_ps, separate) for num_ps in (1, 3) for separate in SEPARATE]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_name_parameters_and_their_slots(layout: Layout) -> None:
    named = by_parameter(held_by(layout), layout)
    slots = {f"{name}/{slot}" for name in NAMED for slot in ("Adam", "Adam_1")}
    assert named.keys() == {*NAMED, *slots, *SCALARS}
    assert all(named[f"{name}/Adam"].shape == shape for name, shape in NAMED.items())
    np.testing.assert_array_equal(named["conv/weights/Adam_1"], named["conv/weights"] + 200)


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_a_run_goes_on_with_other_ps_and_another_critic_rate(before: Layout, after: Layout) -> None:
    named = by_parameter(held_by(before), before)
    held = by_shard(named, after, held_by(after))
    assert held.keys() == held_by(after).keys()
    np.testing.assert_equal(by_parameter(held, after), named)
