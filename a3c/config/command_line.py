"""The argument parser of all settings, and the layers that form a configuration.

Defaults < preset < `--config FILE` < flags. Each layer is checked in the same way: an unknown key,
a wrong type or a value out of range gives one line with the key, the value and the allowed values.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from a3c import __version__
from a3c.config import SECTIONS, Config
from a3c.config import option as settings_of
from a3c.config.option import OPTIONS, Option, coerce, parse_text
from a3c.config.sources import (
    Layer,
    from_dict,
    from_tables,
    merge,
    preset_for,
    preset_names,
    read_file,
    read_preset,
)
from a3c.errors import UserError
from a3c.process import console

__all__ = [
    "OPTIONS",
    "Layer",
    "Option",
    "Parser",
    "add_config_arguments",
    "add_version",
    "coerce",
    "config_from",
    "flag_layer",
    "from_dict",
    "from_tables",
    "idle",
    "make_parser",
    "merge",
    "parse_config",
    "parse_path",
    "parse_text",
    "preset_for",
    "preset_names",
    "read_file",
    "read_preset",
    "to_flags",
]


# The names of our flags in other programs.
_MEANT = {
    flag: others.split()
    for flag, others in {
        "--actions": "--action-set",
        "--base-port": "--port",
        "--config": "--cfg --config-file --settings",
        "--device": "--gpu --cuda",
        "--entropy-weight": "--ent-coef --entropy-coef --entropy --beta",
        "--env-id": "--env --env-name --environment --game --task",
        "--envs": "--n-envs --num-envs",
        "--epochs": "--n-epochs --num-epochs --ppo-epochs",
        "--episodes": "--games --n-episodes --num-episodes --n-eval-episodes",
        "--evaluation-episodes": "--eval-episodes",
        "--gae-lambda": "--gae --lam --lambda",
        "--gamma": "--discount",
        "--greedy": "--deterministic",
        "--learning-rate": "--lr --alpha",
        "--log-interval": "--log-every",
        "--max-env-steps": "--steps --max-steps --num-steps --total-steps --frames "
        "--timesteps --n-timesteps --total-timesteps --max-timesteps",
        "--max-gradient-norm": "--max-grad-norm --grad-clip --clip-grad",
        "--network": "--model --policy --net",
        "--ps": "--num-ps --n-ps --parameter-servers",
        "--ratio-limit": "--clip-range --clip-coef --clip",
        "--record": "--video --save-video --output --out",
        "--resume": "--restore --load --continue --checkpoint",
        "--rollout-length": "--n-steps --n-step --t-max --unroll-length",
        "--run-dir": "--output --out --logdir --log-dir --save-dir --dir --name",
        "--samples-per-step": "--batch-size --batch",
        "--seed": "--random-seed",
        "--stop-at-return": "--goal --target --target-return --reward-threshold",
        "--value-loss-weight": "--vf-coef --value-coef --value-loss-coef",
        "--watch": "--render --display --window",
        "--worker-threads": "--threads",
        "--workers": "--num-workers --n-workers --processes --num-processes --n-jobs",
    }.items()
}


def parse_path(text: str) -> Path:
    """The path that a flag names; an empty path or one with a line break is refused."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no path: give one, or leave the flag out")
    if len(text.splitlines()) > 1 or text.endswith("\n"):
        raise argparse.ArgumentTypeError(f"{text!r} has a line break in it: leave it out")
    return Path(text)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and exits with code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # By default argparse reads -1 and -0.5 as numbers, but -1e-3 and -inf as flags.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        """Print the error in one line, with a similar flag if one was mistyped."""
        if message.startswith("unrecognized arguments: "):
            word = next(iter(message.split(": ", 1)[1].split()), "''")
            flags = [flag for action in self._actions for flag in action.option_strings]
            flag = word.split("=")[0].lower().replace("_", "-")
            known = [name for name in flags if name not in ("-h", "--help")]
            meant = [name for name in known if name == flag or flag in _MEANT.get(name, ())]
            near = meant or difflib.get_close_matches(flag, known, 2, 0.65)
            message = f"unknown argument {word}" + (
                f": did you mean {' or '.join(near)}?" if near else ": see --help"
            )
        self.exit(2, f"{Path(self.prog).name}: {console.one_line(' '.join(message.split()))}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, but refuse arguments with a NUL, which no shell can pass."""
        args = list(sys.argv[1:] if args is None else args)
        for word in args:
            if "\0" in word:
                self.error(f"{word!r} has a NUL in it: leave it out")
        return super().parse_known_args(args, namespace)


def add_config_arguments(parser: argparse.ArgumentParser, *, everything: bool) -> None:
    """Add every setting as a flag; `everything` also shows the rare ones in the help."""
    layers = parser.add_argument_group("configuration: defaults < preset < file < flags")
    layers.add_argument(
        "--preset",
        default="auto",
        metavar="NAME",
        help=f"auto (by environment), none, {', '.join(preset_names())}",
    )
    layers.add_argument(
        "--config", type=parse_path, metavar="FILE", help="TOML file, or a run's config.json"
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
    """The layer from the given flags."""
    layer: Layer = {}
    for key, text in vars(namespace).items():
        if key.startswith("config."):
            option = OPTIONS[key.removeprefix("config.")]
            value = coerce(option, parse_text(option, text), option.flag)
            layer.setdefault(option.section, {})[option.name] = value
    return layer


def idle(
    namespace: argparse.Namespace, config: Config, *, is_atari: bool, has_box_actions: bool
) -> list[str]:
    """A line for each given flag that has no effect, found by the start of its help text."""
    mlp, optimizer = config.network.network, config.learning.optimizer
    used = {
        "Atari": is_atari,
        "Box actions": has_box_actions,
        "Adam": optimizer == "adam",
        "RMSProp": optimizer == "rmsprop",
        "mlp": mlp.startswith("mlp") or mlp == "auto" or ":" in mlp,
    }
    given = [OPTIONS[key.partition(".")[2]] for key in vars(namespace) if key.startswith("config.")]
    wants = {option.flag: option.field.metadata["help"].partition(":")[0] for option in given}
    return [
        f"{flag} does nothing here: it is for {what}"
        for flag, what in wants.items()
        if not used.get(what, True)
    ]


def to_flags(config: Config) -> list[str]:
    """The flags that give this configuration on any host, independent of its presets and files."""
    flags = ["--preset=none"]
    for option in OPTIONS.values():
        value = getattr(getattr(config, option.section), option.name)
        field = option.field
        default = field.default if field.default is not dataclasses.MISSING else {}
        if value != default or option.name == "workers":  # its default depends on the host's cores
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


def config_from(
    namespace: argparse.Namespace, base: Layer | None = None
) -> tuple[Config, str | None]:
    """The configuration from parsed arguments, and the name of its preset.

    `base` is the configuration of a resumed run: file and flags override it, and no preset is used.
    """
    flags = flag_layer(namespace)
    file_layer = read_file(namespace.config) if namespace.config else {}
    if base is not None:
        if namespace.preset != "auto":
            raise UserError(
                f"--preset {namespace.preset}: a run that is resumed keeps its settings: "
                "give single ones, or --config"
            )
        return merge([base, file_layer, flags]), None
    preset = namespace.preset
    if preset == "auto":
        named = merge([file_layer, flags]).env.env_id
        preset = None if _is_complete(file_layer) else preset_for(named)
    elif preset == "none":
        preset = None
    layers = [read_preset(preset)] if preset else []
    return merge([*layers, file_layer, flags]), preset


def changes(before: Config, after: Config) -> list[str]:
    """The settings in which two configurations differ, as `name old -> new`."""
    found = []
    for option in OPTIONS.values():
        old, new = (getattr(getattr(c, option.section), option.name) for c in (before, after))
        if old != new:
            found.append(f"{option.name} {settings_of.shown(old)} -> {settings_of.shown(new)}")
    return found


def _is_complete(layer: Layer) -> bool:
    """Whether a file sets every option, as a run's config.json does; then no preset is used."""
    return sum(len(values) for values in layer.values()) == len(OPTIONS)


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the flag that prints the version."""
    version = f"a3c-cluster {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")


def make_parser(
    prog: str,
    description: str,
    extra: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    everything: bool = False,
    **layout: Any,
) -> Parser:
    """The parser of every setting and of `extra` arguments; `layout` is passed to argparse."""
    parser = Parser(prog=prog, description=description, allow_abbrev=False, **layout)
    parser.add_argument("--help-all", action="help", help="show every setting")
    add_version(parser)
    if extra:
        extra(parser)
    add_config_arguments(parser, everything=everything)
    return parser


def parse_config(
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    extra: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    base: Layer | None = None,
    **layout: Any,
) -> tuple[Config, argparse.Namespace]:
    """Parse a command line of settings and `extra` arguments; errors exit with code 2.

    `base` is the configuration of a resumed run.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    everything = "--help-all" in arguments
    parser = make_parser(prog, description, extra, everything=everything, **layout)
    namespace = parser.parse_args(arguments)
    try:
        config, namespace.preset = config_from(namespace, base)
    except UserError as error:
        parser.error(str(error))
    return config, namespace
