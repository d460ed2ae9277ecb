"""Create dataclass fields for settings."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(
    default: Any,
    help_text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    own: bool = False,
    flag: str | None = None,
    everyday: bool = False,
) -> Any:
    """A dataclass field that the command line, presets and files can all set.

    `low` and `high` are inclusive, `above` is exclusive. `own` also allows the user's own function,
    `package.module:function`, besides the choices. `everyday` options are in `--help`; the others
    are only in `--help-all`.
    """
    metadata = {
        "help": help_text,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
        "own": own,
        "flag": flag,
        "everyday": everyday,
    }
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)
