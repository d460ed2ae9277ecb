"""Where each parameter lies: balanced over the ps, and in its place in the flat vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c.errors import UserError
from a3c.layout import balance

SHAPES = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
    min_size=4,
    max_size=9,
)


def test_the_largest_goes_first_and_always_to_the_lightest() -> None:
    shapes = {"a": (2,), "b": (10,), "c": (3, 3), "d": (), "e": (4,)}
    layout = balance(shapes, 2)
    owners = dict(zip(layout.names, layout.ps, strict=True))
    assert owners == {"b": 0, "c": 1, "e": 1, "a": 0, "d": 0}
    assert layout.names == ("a", "b", "d", "c", "e")
    assert layout.ps_sizes() == [13, 13]
    assert layout.num_parameters == 26


def test_more_ps_than_variables_are_refused() -> None:
    shapes = dict.fromkeys("abc", (3,))
    assert balance(shapes, 3).ps_sizes() == [3, 3, 3]
    with pytest.raises(UserError, match=r"^--ps 4 is too many: the network has 3 variables"):
        balance(shapes, 4)


def test_one_ps_holds_everything_in_the_order_of_the_network() -> None:
    layout = balance({"x": (2, 2), "y": (9,), "z": (1,)}, 1)
    assert (layout.names, layout.ps) == (("x", "y", "z"), (0, 0, 0))


@given(SHAPES, st.integers(1, 4))
def test_every_parameter_is_somewhere_once(shapes: dict[str, tuple[int, ...]], num_ps: int) -> None:
    layout = balance(shapes, num_ps)
    assert dict(zip(layout.names, layout.shapes, strict=True)) == shapes
    assert list(layout.ps) == sorted(layout.ps)
    assert set(layout.ps) == set(range(num_ps))
    assert sum(layout.ps_sizes()) == layout.num_parameters == sum(map(math.prod, shapes.values()))
    assert len(layout.ps_sizes()) == num_ps


@given(SHAPES, st.integers(1, 4))
def test_no_ps_has_more_than_the_lightest_plus_one_parameter(
    shapes: dict[str, tuple[int, ...]], num_ps: int
) -> None:
    sizes = balance(shapes, num_ps).ps_sizes()
    assert max(sizes) - min(sizes) <= max(map(math.prod, shapes.values()))


@given(SHAPES, st.integers(1, 4))
def test_flat_vectors_come_apart_by_ps_and_by_name(
    shapes: dict[str, tuple[int, ...]], num_ps: int
) -> None:
    layout = balance(shapes, num_ps)
    flat = np.arange(layout.num_parameters, dtype=np.float32)
    parts, named = layout.split(flat), layout.unflatten(flat)
    assert [len(part) for part in parts] == layout.ps_sizes()
    np.testing.assert_array_equal(np.concatenate(parts), flat)
    assert {name: value.shape for name, value in named.items()} == shapes
    for ps, part in enumerate(parts):
        mine = [
            named[n].ravel()
            for n, owner in zip(layout.names, layout.ps, strict=True)
            if owner == ps
        ]
        np.testing.assert_array_equal(np.concatenate([*mine, np.zeros(0)]), part)


def test_parts_are_views_and_not_copies() -> None:
    layout = balance({"a": (3,), "b": (2, 2)}, 2)
    flat = np.zeros(7, np.float32)
    flat[:] = 1
    parts, named = layout.split(flat), layout.unflatten(flat)
    flat[:] = 2
    assert all((part == 2).all() for part in (*parts, *named.values()))


def test_workers_agree_without_talking() -> None:
    shapes = {f"layer{i}/weights": (i % 3 + 1, 2) for i in range(9)}
    assert balance(shapes, 3) == balance(dict(shapes), 3)


@pytest.mark.parametrize("num_ps", [1, 3])
def test_parameters_of_one_size_are_spread_evenly(num_ps: int) -> None:
    sizes = balance(dict.fromkeys("abcdef", (5,)), num_ps).ps_sizes()
    assert sizes == [30 // num_ps] * num_ps
