"""Read the layers of a configuration from files and presets, and merge them."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c.config import SECTIONS, Config
from a3c.config.option import OPTIONS, coerce, shown
from a3c.config.rules import validate
from a3c.errors import UserError

PRESETS = Path(__file__).resolve().parents[2] / "presets"

_REMOVED = {"cluster": ("overlap", "start_cores")}  # settings of earlier versions, by section
_AS_BEFORE = {"learning": {"samples_per_step": 0}}  # values for settings that older runs lack

Layer = dict[str, dict[str, Any]]


def from_tables(tables: Any, source: str) -> Layer:
    """Check the sections and keys of a TOML or JSON file."""
    if not isinstance(tables, dict):
        raise UserError(f"{source}: give tables named {', '.join(SECTIONS)}")
    layer: Layer = {}
    for section, values in tables.items():
        if section in OPTIONS and section not in SECTIONS:
            table = OPTIONS[section].section
            raise UserError(f"{source}: {section} belongs in a table: write [{table}] above it")
        if section not in SECTIONS:
            raise UserError(f"{source}: unknown table {section!r}: {_known(section, SECTIONS)}")
        if not isinstance(values, dict):
            raise UserError(f"{source}: {section} = {shown(values)} is refused: give a table")
        names = [option.name for option in OPTIONS.values() if option.section == section]
        for name, value in values.items():
            if name not in names:
                word = name if name.isprintable() else repr(name)
                raise UserError(f"{source}: unknown key {section}.{word}: {_known(name, names)}")
            key = f"{source}: {section}.{name}"
            layer.setdefault(section, {})[name] = coerce(OPTIONS[name], value, key)
    return layer


def _known(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.65)
    return "did you mean " + " or ".join(near) + "?" if near else "known are " + ", ".join(known)


def read_file(path: Path, source: str | None = None) -> Layer:
    """A layer from a TOML file or from a run's config.json.

    `source` is the file's name in messages if it wasn't given by `--config`.
    """
    tables = _parse_file(path, source or f"--config {path}")
    if isinstance(tables, dict):
        tables.pop("for_env_ids", None)
        tables = of_this_version(tables["config"]) if "config" in tables else tables
    return from_tables(tables, str(path))


def _parse_file(path: Path, source: str) -> Any:
    """The contents of a file: JSON if its name ends in .json, else TOML."""
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        data = path.read_bytes()
        return json.loads(data) if form == "JSON" else tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}; give a readable file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not valid {form}: {error}; mend it") from None


def preset_names() -> list[str]:
    """The names of all presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def _preset_tables(name: str) -> dict[str, Any]:
    return _parse_file(PRESETS / f"{name}.toml", f"preset {name}")


def read_preset(name: str) -> Layer:
    """The layer of the preset with that name."""
    if name not in preset_names():
        raise UserError(f"--preset {name} is unknown: {_known(name, preset_names())}")
    tables = _preset_tables(name)
    tables.pop("for_env_ids", None)
    return from_tables(tables, f"preset {name}")


def is_for_another_task(preset: str, env_id: str) -> bool:
    """Whether a preset names its environments and `env_id` isn't among them."""
    patterns = _preset_tables(preset).get("for_env_ids", [])
    return bool(patterns) and not any(fnmatch.fnmatchcase(env_id, p) for p in patterns)


def preset_for(env_id: str) -> str | None:
    """The preset that fits an environment best: the longest matching pattern wins."""
    best: tuple[str, str | None] = ("", None)
    for name in preset_names():
        for pattern in _preset_tables(name).get("for_env_ids", []):
            if fnmatch.fnmatchcase(env_id, pattern) and len(pattern) > len(best[0]):
                best = (pattern, name)
    return best[1]


def merge(layers: Sequence[Layer]) -> Config:
    """One configuration from layers; later layers override earlier ones."""
    merged: Layer = {section: {} for section in SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            merged[section].update(values)
    sections = {name: cls(**merged[name]) for name, cls in SECTIONS.items()}
    return validate(Config(**sections))


def from_dict(tables: Any, source: str) -> Config:
    """A configuration from a run's stored data, checked like any other layer."""
    return merge([from_tables(of_this_version(tables), source)])


def of_this_version(tables: Any) -> Any:
    """Complete the stored settings of a run of an earlier version, so that it behaves as before."""
    if not isinstance(tables, dict):
        return tables
    sections: Layer = {}
    for section, values in tables.items():
        if section not in SECTIONS or not isinstance(values, dict):
            return tables  # `from_tables` refuses them
        defaults = dataclasses.asdict(SECTIONS[section]())
        kept = {k: v for k, v in values.items() if k not in _REMOVED.get(section, ())}
        sections[section] = {**defaults, **_AS_BEFORE.get(section, {}), **kept}
    return sections
