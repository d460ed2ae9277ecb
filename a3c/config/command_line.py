"""The layers of a configuration: defaults < preset < `--config FILE` < flags, and their parser."""

import argparse
import difflib
import fnmatch
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from a3c.config import SECTIONS, ClusterConfig, Config, EnvConfig
from a3c.config.options import OPTIONS, coerce, flat, parse_text, shown, to_text, validate
from a3c.errors import UserError
from a3c.process import __version__, console
from a3c.process.environment import REPOSITORY

PRESETS = REPOSITORY / "presets"

# Settings of earlier versions.
_REMOVED = (
    *("cluster.overlap", "cluster.start_cores", "cluster.start_slots"),
    *("env.episodic_points", "learning.ratio_limit_from"),
)
# Values for settings that older runs lack.
_AS_BEFORE = {"samples_per_step": 0, "predict_weights": False}

Layer = dict[str, Any]  # settings by name

# The names of our flags in other programs.
_FOREIGN_NAMES = {
    "--actions": "--action-set",
    "--base-port": "--port",
    "--callback": "--callbacks --track --wandb --mlflow --wandb-project-name",
    "--config": "--cfg --config-file --settings",
    "--device": "--gpu --cuda",
    "--entropy-weight": "--ent-coef --entropy-coef --entropy --beta",
    "--env-id": "--env --env-name --environment --game --task",
    "--episodes": "--games --n-episodes --num-episodes --n-eval-episodes",
    "--evaluation-episodes": "--eval-episodes",
    "--gae-lambda": "--gae --lam --lambda --tau",
    "--gamma": "--discount",
    "--greedy": "--deterministic",
    "--kl-limit": "--target-kl",
    "--learning-rate": "--lr --alpha",
    "--learning-rate-schedule": "--anneal-lr --lr-schedule",
    "--log-interval": "--log-every",
    "--max-env-steps": "--steps --max-steps --total-steps --frames "
    "--timesteps --n-timesteps --total-timesteps --max-timesteps",
    "--max-wall-time": "--time-limit --max-time --timeout",
    "--patience": "--early-stopping --early-stop",
    "--start-from": "--trained-agent --pretrained --warm-start --init-from --finetune",
    "--max-gradient-norm": "--max-grad-norm --grad-clip --clip-grad",
    "--network": "--model --policy --net",
    "--ps": "--num-ps --n-ps --parameter-servers",
    "--ratio-limit": "--clip-range --clip-coef --clip",
    "--record": "--video --save-video --output --out",
    "--resume": "--restore --load --continue --checkpoint",
    "--reward-clip": "--clip-reward --clip-rewards",
    "--rmsprop-alpha": "--alpha",
    "--rollout-length": "--n-steps --n-step --num-steps --t-max --unroll-length",
    "--run-dir": "--output --out --logdir --log-dir --save-dir --dir --name",
    "--samples-per-step": "--batch-size --batch",
    "--seed": "--random-seed",
    "--stop-at-return": "--goal --target --target-return --reward-threshold",
    "--value-clip": "--clip-vloss",
    "--value-loss-weight": "--vf-coef --value-coef --value-loss-coef",
    "--watch": "--render --display --window",
    "--worker-threads": "--threads",
    "--wrapper": "--wrappers --env-wrapper",
    "--workers": "--num-workers --n-workers --processes --num-processes --n-jobs",
}


def parse_path(text: str) -> Path:
    """The path that a flag names; an empty path or one with a line break is refused."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no path: give one, or leave the flag out")
    if len(text.splitlines()) > 1 or text.endswith("\n"):
        raise argparse.ArgumentTypeError(f"{text!r} has a line break in it: leave it out")
    return Path(text)


class Parser(argparse.ArgumentParser):
    """A parser with --version and whole flags only; an error is one line and exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        if self.add_help:
            version = f"a3c-cluster {__version__}"
            about = "print the version"
            self.add_argument("--version", action="version", version=version, help=about)
        # By default argparse reads -1 and -0.5 as numbers, but -1e-3 and -inf as flags.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        """Print the error in one line, with a similar flag if one was mistyped."""
        if message.startswith("unrecognized arguments: "):
            word = next(iter(message.split(": ", 1)[1].split()), "''")
            flag = word.split("=")[0].lower().replace("_", "-")
            known = [name for name in self._option_string_actions if name not in ("-h", "--help")]
            others = {name: _FOREIGN_NAMES.get(name, "").split() for name in known}
            meant = [name for name in known if name == flag or flag in others[name]]
            near = meant or difflib.get_close_matches(flag, known, 2, 0.65)
            remedy = f"did you mean {' or '.join(near)}?" if near else "see --help"
            message = f"unknown argument {word}: {remedy}"
        ignored = r"argument (\S+)/(\S+): ignored explicit argument '(.*)'"
        message = re.sub(ignored, r"\1=\3 is refused: give \1 or \2, without a value", message)
        message = re.sub("invalid int value: (.*)", r"\1 is refused: give a whole number", message)
        message = re.sub("invalid float value: (.*)", r"\1 is refused: give a number", message)
        self.exit(2, f"{Path(self.prog).name}: {console.one_line(' '.join(message.split()))}\n")


def from_tables(tables: Any, source: str, *, of_run: bool = False) -> Layer:
    """Check the sections and keys of a TOML or JSON file.

    With `of_run` they are all settings of a run, perhaps of an earlier version: removed ones are
    skipped, and missing ones get the value that keeps its behaviour.
    """
    if not isinstance(tables, dict):
        raise UserError(f"{source}: give tables named {', '.join(SECTIONS)}")
    layer: Layer = flat(Config()) | _AS_BEFORE if of_run else {}
    for section, values in tables.items():
        if section in OPTIONS and section not in SECTIONS:
            table = OPTIONS[section].section
            raise UserError(f"{source}: {section} belongs in a table: write [{table}] above it")
        if section not in SECTIONS:
            raise UserError(f"{source}: unknown table {section!r}: {suggest(section, SECTIONS)}")
        if not isinstance(values, dict):
            raise UserError(f"{source}: {section} = {shown(values)} is refused: give a table")
        names = [option.name for option in OPTIONS.values() if option.section == section]
        for name, value in values.items():
            if of_run and f"{section}.{name}" in _REMOVED:
                continue
            if name not in names:
                word = name if name.isprintable() else repr(name)
                raise UserError(f"{source}: unknown key {section}.{word}: {suggest(name, names)}")
            layer[name] = coerce(OPTIONS[name], value, f"{source}: {section}.{name}")
    return layer


def suggest(word: str, known: Iterable[str]) -> str:
    """A remedy for an unknown word: the nearest of those that are known, else all of them."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.65)
    return "did you mean " + " or ".join(near) + "?" if near else "known are " + ", ".join(known)


def read_file(path: Path, source: str | None = None) -> Layer:
    """A layer from a TOML file or a run's config.json; messages call it `source`."""
    tables = parse_file(path, source or f"--config {path}")
    source = source or str(path)
    if isinstance(tables, dict):
        tables.pop("for_env_ids", None)
        if "config" in tables:
            return from_tables(tables["config"], source, of_run=True)
    return from_tables(tables, source)


def parse_file(path: Path, source: str) -> Any:
    """The contents of a file: JSON if its name ends in .json, else TOML."""
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        data = path.read_bytes()
        return json.loads(data) if form == "JSON" else tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}; give a readable file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not valid {form}: {error}; fix it") from None


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def read_preset(name: str) -> Layer:
    if name not in preset_names():
        raise UserError(f"--preset {name} is unknown: {suggest(name, preset_names())}")
    return read_file(PRESETS / f"{name}.toml", f"preset {name}")


def patterns(preset: str) -> list[str]:
    found = parse_file(PRESETS / f"{preset}.toml", f"preset {preset}").get("for_env_ids", [])
    if not isinstance(found, list) or not all(isinstance(pattern, str) for pattern in found):
        what = f"preset {preset}: for_env_ids = {json.dumps(found, default=str)} is refused"
        raise UserError(f'{what}: give a list of ids or patterns, for example ["Mine-*"]')
    return found


def is_for_another_task(preset: str, env_id: str) -> bool:
    """Whether a preset names its environments and `env_id` isn't among them."""
    known = patterns(preset)
    return bool(known) and not any(fnmatch.fnmatchcase(env_id, pattern) for pattern in known)


def preset_for(env_id: str) -> str | None:
    """The preset for an environment: of matching patterns the one with the longest plain prefix."""
    pairs = [(pattern, name) for name in preset_names() for pattern in patterns(name)]
    matching = [pair for pair in pairs if fnmatch.fnmatchcase(env_id, pair[0])]
    best = max(matching, key=lambda pair: len(re.split(r"[*?\[]", pair[0])[0]), default=None)
    return best and best[1]


def merge(layers: Sequence[Layer]) -> Config:
    """One configuration; later layers override earlier ones.

    A later rate also overrides an earlier range of rates, `envs` the envs of a worker, and another
    set of actions the numbers of some. A later value that is below the earlier final one stays as
    it is, instead of rising to that.
    """
    merged: Layer = {}
    for layer in layers:
        for name, overridden in (
            ("learning_rate", "learning_rate_range"),
            ("envs", "envs_per_worker"),
        ):
            if name in layer:
                merged.pop(overridden, None)
        for name in layer:
            if f"{name}_final" in OPTIONS and layer[name] < (merged.get(f"{name}_final") or 0.0):
                merged[f"{name}_final"] = layer[name]
        if {"full_action_space", "continuous"} & set(layer.get("env_kwargs", {})):
            merged.pop("actions", None)
        merged.update(layer)
    if merged.get("max_workers"):
        merged.setdefault("workers", min(ClusterConfig.workers, merged["max_workers"]))
    sections = {
        section: cls(**{name: v for name, v in merged.items() if OPTIONS[name].section == section})
        for section, cls in SECTIONS.items()
    }
    return validate(Config(**sections))


def from_dict(tables: Any, source: str) -> Config:
    """A configuration from a run's stored data, checked like any other layer."""
    return merge([from_tables(tables, source, of_run=True)])


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ((), {}):
        return "-"
    if isinstance(value, tuple):
        return " ".join(map(to_text, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def unused_flags(
    namespace: argparse.Namespace, config: Config, *, is_atari: bool, has_box_actions: bool
) -> list[str]:
    """A line for each given flag without effect; its help text or `needed` says what it is for."""
    learning, network = config.learning, config.network.network
    annealed = {
        "--learning-rate-schedule linear": learning.learning_rate_schedule == "linear",
        "--entropy-weight-final": learning.entropy_weight_final is not None,
        "--ratio-limit-final": learning.ratio_limit_final is not None,
        "--epsilon-greedy": learning.epsilon_greedy != learning.epsilon_greedy_final,
    }
    schedule = "a schedule, such as --learning-rate-schedule linear"
    used = {
        **annealed,
        schedule: any(annealed.values()),
        "Atari": is_atari,
        "preprocessed Atari games": is_atari and config.env.preprocessing != "none",
        "Box actions": has_box_actions,
        "Adam": learning.optimizer == "adam",
        "RMSProp": learning.optimizer == "rmsprop",
        "mlp": network not in ("a3c-ff", "a3c-lstm", "nature", "universe", "universe-ff"),
        "a run without --learning-rate-range": not learning.learning_rate_range,
        "--return-steps": learning.return_steps is not None,
        "--no-normalize-advantages": not learning.normalize_advantages,
    }
    needed = {
        "learning_rate": "a run without --learning-rate-range",
        "learning_rate_final": "--learning-rate-schedule linear",
        "return_min_samples": "--return-steps",
        **dict.fromkeys(
            ("frame_stack", "repeat_first_frame", "noop_max", "fire_on_reset"),
            "preprocessed Atari games",
        ),
        "advantage_horizon": "--no-normalize-advantages",
        **{f"entropy_anneal_{end}": "--entropy-weight-final" for end in ("start", "steps")},
        **{f"ratio_limit_anneal_{end}": "--ratio-limit-final" for end in ("start", "steps")},
        **{f"epsilon_anneal_{end}": "--epsilon-greedy" for end in ("start", "steps")},
        **{f"anneal_{end}": schedule for end in ("start", "steps")},
    }
    lines = []
    for key in vars(namespace):
        if key.startswith("config."):
            option = OPTIONS[key.removeprefix("config.")]
            what = needed.get(option.name, option.field.metadata["help"].partition(":")[0])
            if not used.get(what, True):
                lines.append(f"{option.flag} does nothing here: it is for {what}")
    return lines


def to_flags(config: Config) -> list[str]:
    """The flags that give this configuration on any host, independent of its presets and files."""
    usual = flat(Config()) | {"workers": None}  # its default depends on the host's cores
    values = {name: value for name, value in flat(config).items() if value != usual[name]}
    return ["--preset=none", *flags_of(values)]


def flags_of(values: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in values.items():
        option = OPTIONS[name]
        if option.kind is bool:
            flags.append(option.flag if value else option.flag.replace("--", "--no-", 1))
        elif option.is_repeatable and value:
            flags += [f"{option.flag}={to_text(item)}" for item in value]
        elif option.is_list:
            flags += [option.flag, *map(str, value)]
        elif option.kind is dict:
            flags.append(f"{option.flag}={json.dumps(value)}")
        else:
            flags.append(f"{option.flag}={'none' if value is None else value}")
    return flags


def sources(
    namespace: argparse.Namespace, base: Layer | None = None
) -> tuple[list[tuple[str, Layer]], str | None]:
    """The layers of parsed arguments by name, the weakest first, and the preset's name."""
    flags: Layer = {}
    for key, text in vars(namespace).items():
        if key.startswith("config."):
            option = OPTIONS[key.removeprefix("config.")]
            flags[option.name] = coerce(option, parse_text(option, text), option.flag)
    file_layer = read_file(namespace.config) if namespace.config else {}
    given = [(str(namespace.config), file_layer), ("flag", flags)]
    preset = namespace.preset
    if base is not None:  # of a resumed run, whose preset is in it
        if preset != "auto":
            what = f"--preset {preset}: a run that is resumed keeps its settings"
            raise UserError(f"{what}: give single ones, or --config")
        return [("run", base), *given], None
    # A file that sets every option, as a run's config.json does, leaves nothing to a preset.
    is_whole = len(file_layer) == len(OPTIONS)
    if preset == "auto":
        env_id = (file_layer | flags).get("env_id", EnvConfig.env_id)
        preset = None if is_whole else preset_for(env_id)
    if preset in (None, "none"):
        return given, None
    if is_whole:
        what = f"--preset {preset} with --config {namespace.config}, which sets everything"
        raise UserError(f"{what}: leave one of them out")
    return [(f"preset {preset}", read_preset(preset)), *given], preset


def make_parser(
    prog: str,
    description: str,
    extra: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    everything: bool = False,
    **layout: Any,
) -> Parser:
    """The parser of every setting and of `extra` arguments; `layout` is passed to argparse.

    The help shows each setting's default; the rare settings only with `everything`.
    """
    parser = Parser(prog=prog, description=description, **layout)
    parser.add_argument("--help-all", action="help", help="show every setting")
    if extra:
        extra(parser)
    group = parser.add_argument_group("configuration: defaults < preset < file < flags")
    presets = f"auto (by environment), none, {', '.join(preset_names())}"
    group.add_argument("--preset", default="auto", metavar="NAME", help=presets)
    file = "TOML file, or a run's config.json"
    group.add_argument("--config", type=parse_path, metavar="FILE", help=file)
    groups = {section: parser.add_argument_group(section) for section in SECTIONS}
    for option in OPTIONS.values():
        metadata = option.field.metadata
        help_text = metadata["help"]
        if option.choices:
            help_text += f" [{', '.join(option.choices)}]"
        if option.kind is not dict and option.field.default not in (None, ()):
            help_text += f" ({plain(option.field.default)})"
        settings: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if option.kind is not bool:
            words = {int: "N", float: "X", str: "TEXT", dict: "JSON"}
            is_name = option.choices or option.is_repeatable
            metavar = "NAME" if is_name else words[option.kind]
            settings = {"metavar": metavar, "nargs": "*" if option.is_list else None}
            settings["action"] = "extend" if option.is_repeatable else "store"
        groups[option.section].add_argument(
            option.flag,
            dest=f"config.{option.name}",
            default=argparse.SUPPRESS,
            help=help_text if everything or metadata["everyday"] else argparse.SUPPRESS,
            **settings,
        )
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
    """Parse a command line of settings and `extra` arguments over `base`; errors exit with 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    everything = "--help-all" in arguments
    parser = make_parser(prog, description, extra, everything=everything, **layout)
    namespace = parser.parse_args(arguments)
    try:
        layers, namespace.preset = sources(namespace, base)
        return merge([layer for _, layer in layers]), namespace
    except UserError as error:
        parser.error(str(error))
