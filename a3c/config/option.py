"""The allowed values of each setting, read from its dataclass field, and their checks."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from typing import Any, Literal

from a3c.config import SECTIONS
from a3c.errors import UserError

MAX_TABLE_DEPTH = 32
OWN_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class Option(typing.NamedTuple):
    """One setting: its section, name, type and allowed values."""

    section: str
    name: str
    kind: Any  # int, float, str, bool, dict, or a tuple (item kind, ...)
    choices: tuple[str, ...]
    optional: bool
    field: dataclasses.Field[Any]

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return self.field.metadata["flag"] or "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.choices:
            own = ", or package.module:function" if self.field.metadata["own"] else ""
            return "one of " + ", ".join(self.choices) + own
        if self.kind is bool:
            return "true or false"
        if self.kind is dict:
            return (
                "a table (as a flag: a JSON object) of texts, finite numbers, booleans, lists and "
                f"tables, at most {MAX_TABLE_DEPTH} deep"
            )
        item = self.kind[0] if isinstance(self.kind, tuple) else self.kind
        words = {int: "a whole number", float: "a number", str: "a text"}[item]
        if isinstance(self.kind, tuple):
            words = f"a list, each {words}"
        return words + _range_words(self.field.metadata) + (" (or unset)" if self.optional else "")


def _range_words(limits: Any) -> str:
    low, high, above = limits["low"], limits["high"], limits["above"]
    if above is not None:
        return f" above {above}" + (f", at most {high}" if high is not None else "")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return ""


def _option(section: str, field: dataclasses.Field[Any], hint: Any) -> Option:
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        optional = True
    origin = typing.get_origin(hint)
    choices: tuple[str, ...] = field.metadata["choices"]
    kind: Any = hint
    if origin is Literal:
        choices, kind = typing.get_args(hint), str
    elif origin is tuple:
        kind = (typing.get_args(hint)[0], ...)
    elif origin is dict:
        kind = dict
    return Option(section, field.name, kind, choices, optional, field)


def _all_options() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for section, cls in SECTIONS.items():
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            assert field.name not in found, f"two options are named {field.name}"
            found[field.name] = _option(section, field, hints[field.name])
    return found


OPTIONS: dict[str, Option] = _all_options()


# --- checking one value -------------------------------------------------------------------------


def coerce(option: Option, value: Any, source: str) -> Any:
    """Convert a value to the field's type; raises UserError with the allowed values."""
    if value is None and option.optional:
        return None
    try:
        if isinstance(option.kind, tuple):
            if not isinstance(value, list | tuple):
                raise ValueError
            return tuple(_coerce_item(option, option.kind[0], item) for item in value)
        return _coerce_item(option, option.kind, value)
    except (ValueError, OverflowError):
        raise UserError(f"{source} = {shown(value)} is refused: give {option.allowed}") from None


def shown(value: Any) -> str:
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:
        text = "a bottomless list or table"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_plain(value: Any, depth: int = MAX_TABLE_DEPTH) -> bool:
    """Whether JSON can store the value unchanged; not so for dates, NaN and too deep lists."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(item, depth - 1) for item in items)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _coerce_item(option: Option, kind: Any, value: Any) -> Any:
    """Convert one item; raises ValueError if it isn't allowed. A bool is never a number."""
    if kind in (dict, bool, str):
        if not isinstance(value, kind) or not _is_plain(value):
            raise ValueError
        own = option.field.metadata["own"] and OWN_FUNCTION.fullmatch(str(value))
        if option.choices and value not in option.choices and not own:
            raise ValueError
        if isinstance(value, str) and not (value and value.isprintable()):
            raise ValueError
        return value
    return _coerce_number(option, kind, value)


def _coerce_number(option: Option, kind: Any, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    number = kind(value)
    limits = option.field.metadata
    low, high, above = limits["low"], limits["high"], limits["above"]
    in_range = (low is None or number >= low) and (high is None or number <= high)
    if not in_range or (above is not None and number <= above):
        raise ValueError
    if kind is int and number != value:
        raise ValueError
    return number


def parse_text(option: Option, text: Any) -> Any:
    """Convert a flag's text to the plain value that `coerce` checks."""
    if isinstance(text, list):
        return [parse_text(option._replace(kind=option.kind[0]), item) for item in text]
    if option.kind is str or isinstance(text, bool):
        return text
    if option.optional and text == "none":
        return None
    try:
        if option.kind is dict:
            return json.loads(text)
        return int(text) if option.kind is int else float(text)
    except (ValueError, RecursionError):
        try:  # allow 1e6 for a whole number
            return float(text)
        except ValueError:
            return text
