"""Read model.py's table of networks without running model.py, which would import TensorFlow.

A network added to `NETWORKS` there is thus known to `--network`, to completion and to the checks
before a start.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).resolve().parents[2] / "model.py"


class Known(NamedTuple):
    """The properties of a network in the table."""

    recurrent: bool = False
    min_side: int = 0  # pixels of the smallest image allowed; 0: takes vectors too


@functools.cache
def networks() -> dict[str, Known]:
    """The networks by name; empty if the table can't be read (importing model.py reports why)."""
    try:
        tree = ast.parse(MODEL.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        table = getattr(node, "value", None)
        if names == ["NETWORKS"] and isinstance(table, ast.Dict):
            rows = zip(table.keys, table.values, strict=True)
            return {key.value: _row(row) for key, row in rows if _is_name(key)}  # type: ignore[union-attr]
    return {}


def _is_name(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


def _row(row: ast.expr) -> Known:
    """The properties in a call of `Architecture`, from its constant keyword arguments."""
    keywords = row.keywords if isinstance(row, ast.Call) else []
    said = {k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant)}
    side = said.get("min_side")
    return Known(bool(said.get("recurrent", False)), side if isinstance(side, int) else 0)
