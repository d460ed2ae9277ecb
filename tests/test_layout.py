"""Where each parameter lies: shared out evenly over the ps, and in its place in the vector."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c.errors import UserError
from a3c.server.layout import Layout, cut

SHAPES = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
    min_size=4,
    max_size=9,
)


def is_apart(name: str) -> bool:
    return name.startswith("b")


def sizes_by_ps(layout: Layout, num_ps: int) -> list[int]:
    return [sum(shard.size for shard in layout.shards if shard.ps == i) for i in range(num_ps)]


def test_a_layer_that_is_nearly_everything_is_split_over_the_ps() -> None:
    layout = cut({"a": (2,), "b": (10, 10), "c": ()}, 2)
    assert [(s.name, s.ps, s.start, s.stop) for s in layout.shards] == [
        ("parameters_0", 0, 0, 51),
        ("parameters_1", 1, 51, 103),
    ]


def test_parameters_with_a_rate_of_their_own_come_last_and_are_cut_by_themselves() -> None:
    layout = cut({"a": (2,), "b": (4,), "c": (3,)}, 2, is_apart)
    assert layout.names == ("a", "c", "b")
    assert [(s.ps, s.start, s.stop, s.apart) for s in layout.shards] == [
        *((0, 0, 2, False), (1, 2, 5, False)),
        *((0, 5, 7, True), (1, 7, 9, True)),
    ]


def test_more_ps_than_parameters_are_refused() -> None:
    shapes = dict.fromkeys("abc", (1,))
    assert sizes_by_ps(cut(shapes, 3), 3) == [1, 1, 1]
    with pytest.raises(UserError, match=r"^--ps 4 is too many: the network has 3 parameters"):
        cut(shapes, 4)


def test_one_ps_holds_everything_in_the_order_of_the_network() -> None:
    layout = cut({"x": (2, 2), "y": (9,), "z": (1,)}, 1)
    assert layout.names == ("x", "y", "z")
    assert [shard.size for shard in layout.shards] == [14]


@given(SHAPES, st.integers(1, 4), st.booleans())
def test_shards_cover_every_parameter_once_and_evenly(
    shapes: dict[str, tuple[int, ...]], num_ps: int, some_apart: bool
) -> None:
    layout = cut(shapes, num_ps, is_apart if some_apart else lambda _: False)
    assert dict(zip(layout.names, layout.shapes, strict=True)) == shapes
    assert layout.shards[0].start == 0
    assert layout.shards[-1].stop == layout.num_parameters == sum(map(math.prod, shapes.values()))
    assert all(a.stop == b.start for a, b in itertools.pairwise(layout.shards))
    sizes = sizes_by_ps(layout, num_ps)
    assert max(sizes) - min(sizes) <= 1 + some_apart


@given(SHAPES, st.integers(1, 4))
def test_flat_vectors_come_apart_by_shard_and_by_name(
    shapes: dict[str, tuple[int, ...]], num_ps: int
) -> None:
    layout = cut(shapes, num_ps, is_apart)
    flat = np.arange(layout.num_parameters, dtype=np.float32)
    named = layout.unflatten(flat)
    assert {name: value.shape for name, value in named.items()} == shapes
    np.testing.assert_array_equal(np.concatenate(layout.split(flat)), flat)
    np.testing.assert_array_equal(layout.flatten(named), flat)


def test_parts_are_views_and_not_copies() -> None:
    layout = cut({"a": (3,), "b": (2, 2)}, 2)
    flat = np.zeros(7, np.float32)
    flat[:] = 1
    parts, named = layout.split(flat), layout.unflatten(flat)
    flat[:] = 2
    assert all((part == 2).all() for part in (*parts, *named.values()))


def test_workers_agree_without_talking() -> None:
    shapes = {f"layer{i}/weights": (i % 3 + 1, 2) for i in range(9)}
    assert cut(shapes, 3) == cut(dict(shapes), 3)
