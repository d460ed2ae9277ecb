"""The one argument parser, and the layers a configuration is put together from.

Defaults < preset < `--config FILE` < flags. Each layer is checked the same way: an unknown key, a
wrong type or a value out of range is one line that names the key, the value and what is allowed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import fnmatch
import json
import math
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from a3c.config import SECTIONS, Config, validate
from a3c.errors import UserError

PRESETS = Path(__file__).resolve().parent.parent / "presets"
MAX_TABLE_DEPTH = 32
OWN_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class Option(typing.NamedTuple):
    """One setting: where it lives, what it takes, how it is said."""

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
        """What the setting takes, for people."""
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
    """The value as the dataclass holds it, or a UserError that says what is allowed."""
    if value is None and option.optional:
        return None
    try:
        if isinstance(option.kind, tuple):
            if not isinstance(value, list | tuple):
                raise ValueError
            return tuple(_coerce_item(option, option.kind[0], item) for item in value)
        return _coerce_item(option, option.kind, value)
    except (ValueError, OverflowError):
        raise UserError(f"{source} = {_shown(value)} is refused: give {option.allowed}") from None


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:
        text = "a bottomless list or table"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_plain(value: Any, depth: int = MAX_TABLE_DEPTH) -> bool:
    """Whether a value comes back from JSON as it was: dates, NaN and bottomless lists don't."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(item, depth - 1) for item in items)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _coerce_item(option: Option, kind: Any, value: Any) -> Any:
    """Check one item; ValueError where it doesn't fit. A bool is never a number."""
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
    """A flag's text as the plain value that `coerce` checks."""
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
        try:  # 1e6 is a fine way to write a whole number
            return float(text)
        except ValueError:
            return text


# --- layers -------------------------------------------------------------------------------------

Layer = dict[str, dict[str, Any]]


def from_tables(tables: Any, source: str) -> Layer:
    """Check the sections and keys of a TOML or JSON file."""
    if not isinstance(tables, dict):
        raise UserError(f"{source}: give tables named {', '.join(SECTIONS)}")
    layer: Layer = {}
    for section, values in tables.items():
        if section not in SECTIONS:
            raise UserError(f"{source}: unknown table {section!r}: {_known(section, SECTIONS)}")
        if not isinstance(values, dict):
            raise UserError(f"{source}: {section} = {_shown(values)} is refused: give a table")
        names = [option.name for option in OPTIONS.values() if option.section == section]
        for name, value in values.items():
            if name not in names:
                word = name if name.isprintable() else repr(name)
                raise UserError(f"{source}: unknown key {section}.{word}: {_known(name, names)}")
            key = f"{source}: {section}.{name}"
            layer.setdefault(section, {})[name] = coerce(OPTIONS[name], value, key)
    return layer


def _known(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return "did you mean " + " or ".join(near) + "?" if near else "known are " + ", ".join(known)


def read_file(path: Path) -> Layer:
    """A layer from a TOML file, or from the config.json that a run left behind."""
    tables = _parse_file(path, f"--config {path}")
    if isinstance(tables, dict):
        tables.pop("for_env_ids", None)
        tables = tables.get("config", tables)
    return from_tables(tables, str(path))


def _parse_file(path: Path, source: str) -> Any:
    """What a file holds: JSON where it is called so, else TOML."""
    is_json = path.suffix == ".json"
    try:
        data = path.read_bytes()
        return json.loads(data) if is_json else tomllib.loads(data.decode())
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}; give a readable file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not valid {'JSON' if is_json else 'TOML'}: {error}") from None


def preset_names() -> list[str]:
    """Every preset that there is, by name."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def _preset_tables(name: str) -> dict[str, Any]:
    return _parse_file(PRESETS / f"{name}.toml", f"preset {name}")


def read_preset(name: str) -> Layer:
    """The layer of a preset, by name."""
    if name not in preset_names():
        raise UserError(f"--preset {name} is unknown: {_known(name, preset_names())}")
    tables = _preset_tables(name)
    tables.pop("for_env_ids", None)
    return from_tables(tables, f"preset {name}")


def preset_for(env_id: str) -> str | None:
    """The preset that fits an environment best: the longest matching pattern wins."""
    best: tuple[str, str | None] = ("", None)
    for name in preset_names():
        for pattern in _preset_tables(name).get("for_env_ids", []):
            if fnmatch.fnmatchcase(env_id, pattern) and len(pattern) > len(best[0]):
                best = (pattern, name)
    return best[1]


def merge(layers: Sequence[Layer]) -> Config:
    """One configuration from layers, the later ones winning."""
    merged: Layer = {section: {} for section in SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            merged[section].update(values)
    sections = {name: cls(**merged[name]) for name, cls in SECTIONS.items()}
    return validate(Config(**sections))


def from_dict(tables: Any, source: str) -> Config:
    """A configuration from plain data, checked like any other layer."""
    return merge([from_tables(tables, source)])


# --- the command line ---------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are one line and exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # By itself argparse takes -1 and -0.5 for numbers, but -1e-3 and -inf for flags.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, with a near flag where one was mistyped."""
        if message.startswith("unrecognized arguments: "):
            word = next(iter(message.split(": ", 1)[1].split()), "''")
            flags = [flag for action in self._actions for flag in action.option_strings]
            near = difflib.get_close_matches(word.split("=")[0], flags, n=2)
            message = f"unknown argument {word}" + (
                f": did you mean {' or '.join(near)}?" if near else ": see --help"
            )
        line = " ".join(message.split())
        self.exit(2, f"{Path(self.prog).name}: {line}\n")


def add_config_arguments(parser: argparse.ArgumentParser, *, everything: bool) -> None:
    """Add every setting as a flag; those that are not for every day show with `everything`."""
    layers = parser.add_argument_group("configuration: defaults < preset < file < flags")
    layers.add_argument(
        "--preset",
        default="auto",
        metavar="NAME",
        help=f"auto (by environment), none, {', '.join(preset_names())}",
    )
    layers.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file, or a run's config.json"
    )
    for section in SECTIONS:
        group = parser.add_argument_group(section)
        for option in OPTIONS.values():
            if option.section == section:
                _add_flag(group, option, shown=everything or option.field.metadata["everyday"])


def _add_flag(group: Any, option: Option, *, shown: bool) -> None:
    help_text = option.field.metadata["help"].replace("%", "%%")
    if option.choices:
        help_text += f" [{', '.join(option.choices)}]"
    settings: dict[str, Any] = {
        "dest": f"config.{option.name}",
        "default": argparse.SUPPRESS,
        "help": help_text if shown else argparse.SUPPRESS,
    }
    if option.kind is bool:
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
        return
    metavar = "NAME" if option.choices else _metavar(option.kind)
    nargs = "*" if isinstance(option.kind, tuple) else None
    group.add_argument(option.flag, nargs=nargs, metavar=metavar, **settings)


def _metavar(kind: Any) -> str:
    item = kind[0] if isinstance(kind, tuple) else kind
    return {int: "N", float: "X", str: "TEXT", dict: "JSON"}[item]


def flag_layer(namespace: argparse.Namespace) -> Layer:
    """The layer of the flags that were given."""
    layer: Layer = {}
    for key, text in vars(namespace).items():
        if key.startswith("config."):
            option = OPTIONS[key.removeprefix("config.")]
            value = coerce(option, parse_text(option, text), option.flag)
            layer.setdefault(option.section, {})[option.name] = value
    return layer


def to_flags(config: Config) -> list[str]:
    """The flags that give this configuration on any host, whatever presets or files it has."""
    flags = ["--preset=none"]
    for option in OPTIONS.values():
        value = getattr(getattr(config, option.section), option.name)
        field = option.field
        default = field.default if field.default is not dataclasses.MISSING else {}
        if value != default:
            flags += _to_flag(option, value)
    return flags


def _to_flag(option: Option, value: Any) -> list[str]:
    if option.kind is bool:
        return [option.flag if value else option.flag.replace("--", "--no-", 1)]
    if isinstance(option.kind, tuple):
        return [option.flag, *map(str, value)]
    if option.kind is dict:
        return [f"{option.flag}={json.dumps(value)}"]
    return [f"{option.flag}={'none' if value is None else value}"]


def config_from(namespace: argparse.Namespace) -> tuple[Config, str | None]:
    """The configuration that parsed arguments ask for, and the preset it started from."""
    flags = flag_layer(namespace)
    file_layer = read_file(namespace.config) if namespace.config else {}
    preset = namespace.preset
    if preset == "auto":
        named = merge([file_layer, flags]).env.env_id
        preset = None if _is_complete(file_layer) else preset_for(named)
    elif preset == "none":
        preset = None
    layers = [read_preset(preset)] if preset else []
    return merge([*layers, file_layer, flags]), preset


def _is_complete(layer: Layer) -> bool:
    """Whether a file set everything, as a run's config.json does: no preset belongs under it."""
    return sum(len(values) for values in layer.values()) == len(OPTIONS)


def parse_config(
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    extra: Callable[[argparse.ArgumentParser], None] | None = None,
) -> tuple[Config, argparse.Namespace]:
    """Parse a command line of settings and `extra` arguments; refusals exit with code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--help-all", action="help", help="show every setting")
    if extra:
        extra(parser)
    add_config_arguments(parser, everything="--help-all" in arguments)
    namespace = parser.parse_args(arguments)
    try:
        config, namespace.preset = config_from(namespace)
    except UserError as error:
        parser.error(str(error))
    return config, namespace
