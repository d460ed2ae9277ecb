"""The checks of settings: of each option's value, and of several settings against each other."""

import contextlib
import dataclasses
import json
import math
import os
import re
import types
import typing
from typing import Any, Literal

from a3c.config import MAX_ENVS, SECTIONS, Config
from a3c.config.user_code import is_recurrent
from a3c.errors import UserError

MAX_TABLE_DEPTH = 32
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
OWN_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_TABLE = f"texts, finite numbers, booleans, lists and tables, at most {MAX_TABLE_DEPTH} deep"


class Option(typing.NamedTuple):
    section: str
    name: str
    kind: Any  # int, float, str, bool or dict; of a list, that of its items
    is_list: bool
    choices: tuple[str, ...]
    optional: bool
    field: dataclasses.Field[Any]

    @property
    def flag(self) -> str:
        """The flag on the command line: the name without its unit."""
        return "--" + self.name.removesuffix("_s").removesuffix("_mb").replace("_", "-")

    @property
    def is_user_code(self) -> bool:
        """Whether it lists the user's own code: tables with a name and arguments."""
        return self.kind is dict and self.is_list

    @property
    def is_repeatable(self) -> bool:
        return self.is_list and self.kind in (str, dict)

    @property
    def allowed(self) -> str:
        if self.choices:
            own = ", or package.module:function" if self.field.metadata["choices"] else ""
            return "one of " + ", ".join(self.choices) + own
        if self.kind is bool:
            return "true or false"
        if self.is_user_code:
            own = "package.module:name, or a table (as a flag: a JSON object) with it as the name"
            return f"{own} and arguments: {_TABLE}"
        if self.kind is dict:
            return f"a table (as a flag: a JSON object) of {_TABLE}"
        words = {int: "a whole number", float: "a number", str: "a text"}[self.kind]
        if self.is_list:
            words = f"a list, each {words}"
        if self.name.endswith("_s"):
            words += " of seconds, or a time like 30m,"
        low, high, above = self.field.metadata["limits"]
        if above is not None:
            words += f" above {above}, at most {high}"
        elif low is not None:
            words += f" of at least {low}" if high is None else f" from {low} to {high}"
        return words + (' (or "none")' if self.optional else "")


def _all_options() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for section, cls in SECTIONS.items():
        for field in dataclasses.fields(cls):
            assert field.name not in found, f"two options are named {field.name}"
            kind, choices = field.type, field.metadata["choices"]
            optional = typing.get_origin(kind) is types.UnionType
            if optional:
                kind = typing.get_args(kind)[0]  # the other one is None
            origin, parts = typing.get_origin(kind), typing.get_args(kind)
            if origin is Literal:
                choices, kind = parts, str
            elif origin is not None:
                kind = typing.get_origin(parts[0]) or parts[0] if origin is tuple else dict
            is_list = origin is tuple
            found[field.name] = Option(section, field.name, kind, is_list, choices, optional, field)
    return found


OPTIONS: dict[str, Option] = _all_options()


def flat(config: Config) -> dict[str, Any]:
    return {o.name: getattr(getattr(config, o.section), o.name) for o in OPTIONS.values()}


def coerce(option: Option, value: Any, source: str) -> Any:
    """Convert a value to the field's type; raises UserError with the allowed values."""
    if option.optional and value in (None, "none"):  # TOML has no null
        return None
    with contextlib.suppress(ValueError, OverflowError):
        if not option.is_list:
            return _coerce_item(option, value)
        if isinstance(value, list | tuple):
            return tuple(_coerce_item(option, item) for item in value)
    raise UserError(f"{source} = {shown(value)} is refused: give {option.allowed}")


def shown(value: Any) -> str:
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:
        text = "a bottomless list or table"
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_plain(value: Any, depth: int = MAX_TABLE_DEPTH) -> bool:
    """Whether JSON can store the value unchanged; not so for dates, NaN and too deep lists."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(item, depth - 1) for item in items)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _is_path(text: Any) -> bool:
    """Whether a file can have this path, in one line; ValueError if the system can't write it."""
    return isinstance(text, str) and len(text.splitlines()) == 1 and b"\0" not in os.fsencode(text)


def _coerce_item(option: Option, value: Any) -> Any:
    """Convert one item; raises ValueError if it isn't allowed. A bool is never a number."""
    kind = option.kind
    if option.is_user_code:
        value = {"name": value} if isinstance(value, str) else value
        if not isinstance(value, dict) or not OWN_FUNCTION.fullmatch(str(value.get("name"))):
            raise ValueError
    if kind in (dict, bool, str):
        is_path = option.name == "start_from" and _is_path(value)
        is_text = isinstance(value, str) and value != "" and (is_path or value.isprintable())
        if not isinstance(value, kind) or not _is_plain(value) or (kind is str and not is_text):
            raise ValueError
        own = option.field.metadata["choices"] and OWN_FUNCTION.fullmatch(str(value))
        if option.choices and value not in option.choices and not own:
            raise ValueError
        return value
    if option.name.endswith("_s") and isinstance(value, str) and value[-1:] in SECONDS:
        value = float(value[:-1]) * SECONDS[value[-1]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    number = kind(value)
    low, high, above = option.field.metadata["limits"]
    in_range = (low is None or number >= low) and (high is None or number <= high)
    is_whole = kind is float or number == value
    if not in_range or not is_whole or (above is not None and number <= above):
        raise ValueError
    return number


def to_text(value: Any) -> str:
    """An item of a list as a flag takes it."""
    if not isinstance(value, dict):
        return str(value)
    return value["name"] if len(value) == 1 else json.dumps(value)


def parse_text(option: Option, text: Any) -> Any:
    """Convert a flag's text to the plain value that `coerce` checks."""
    if isinstance(text, list):
        return [parse_text(option, item) for item in text]
    if option.kind is str or isinstance(text, bool):
        return text
    for convert in (json.loads if option.kind is dict else option.kind, float):
        with contextlib.suppress(ValueError, RecursionError):  # 1e6 is a whole number too
            return convert(text)
    return text


def validate(config: Config) -> Config:
    cluster, network = config.cluster, config.network.network
    _check_learning(config)
    check_minibatches(config, recurrent=is_recurrent(network))
    if cluster.num_addresses < cluster.workers:
        fact = f"max_workers {cluster.max_workers} is below workers {cluster.workers}"
        raise UserError(f"{fact}: give more, or fewer --workers")
    if config.share.envs > MAX_ENVS:
        fact = f"envs {config.env.envs} are {config.share.envs:,} for each worker"
        raise UserError(f"{fact}: give at most {MAX_ENVS:,} a worker, or more --workers")
    silence_s, ps_timeout_s = cluster.worker_timeout_s, cluster.ps_timeout_s
    if silence_s <= ps_timeout_s:
        what = f"heartbeat_timeout_s {silence_s:g} is not above ps_timeout_s {ps_timeout_s:g}"
        why = "a worker that waits for the ps would count as hung"
        raise UserError(f"{what}: {why}; give more, or a shorter --ps-timeout")
    if not config.network.hidden_sizes and network in ("mlp", "mlp-lstm"):
        raise UserError("hidden_sizes is empty: give at least one layer, for example 64 64")
    shown = config.run.render_worker
    if shown is not None and shown >= cluster.num_addresses:
        what = f"render_worker {shown}: there is none, the last one is {cluster.num_addresses - 1}"
        raise UserError(f"{what}; give another, or more --workers")
    for name in ("push_winner", "stop_worker_games"):
        if getattr(config.run, name) and config.run.stop_at_return is None:
            off = "--no-push-winner" if name == "push_winner" else "--stop-worker-games none"
            raise UserError(f"{name} without a goal to reach: give --stop-at-return, or {off}")
    if len(set(config.env.actions)) != len(config.env.actions):
        raise UserError(f"actions {list(config.env.actions)}: name each action once")
    return config


def _check_learning(config: Config) -> None:
    learning = config.learning
    rates = learning.learning_rate_range
    if rates and (len(rates) != 2 or rates[0] > rates[1]):
        raise UserError(f"learning_rate_range {list(rates)}: give two rates, the lower one first")
    for name, is_given in (
        ("epochs", learning.epochs > 1),
        ("ratio_limit_final", bool(learning.ratio_limit_final)),
        ("value_clip", learning.value_clip > 0),
    ):
        if is_given and not learning.ratio_limit:
            what = f"{name} {getattr(learning, name):g} without a ratio_limit"
            why = "which bounds how far the policy moves"
            raise UserError(f"{what}, {why}: give one, for example --ratio-limit 0.2")
    if learning.kl_limit and learning.epochs == 1:
        what = f"kl_limit {learning.kl_limit:g} with one epoch, which it never shortens"
        raise UserError(f"{what}: give more, for example --epochs 4 --ratio-limit 0.2")
    gathered = f"samples_per_step {config.samples_per_step}"
    if learning.optimizer_statistics == "per-worker" and config.samples_per_step:
        why = "each push is a finished step of its worker; give --samples-per-step 0"
        raise UserError(f"optimizer_statistics per-worker with {gathered}: {why}")
    if learning.value_optimizer == "own" and config.samples_per_step:
        why = "the gradient of each loss is a step of its own; give --samples-per-step 0"
        raise UserError(f"value_optimizer own with {gathered}: {why}")
    for name, (start, end) in config.windows.items():
        if start >= end:
            what = f"{name}_start {start} is not below the end of the schedules, {end}"
            raise UserError(f"{what}: give less, or more --{name.replace('_', '-')}-steps")


def check_minibatches(config: Config, *, recurrent: bool) -> None:
    """Refuse too many minibatches, and what a network with a memory can't have.

    Whether a user's own network is recurrent is known only when it is built.
    """
    minibatches, share = config.learning.minibatches or 1, config.share
    if recurrent and config.learning.return_steps is not None:
        what = f"return_steps {config.learning.return_steps}: samples of several rollouts are mixed"
        remedy = "leave it out, or choose another --network"
        raise UserError(f"{what}, so the network must have no memory; {remedy}")
    if recurrent and minibatches > share.envs:
        why = "each minibatch of a network with a memory needs environments of its own"
        what = f"minibatches {minibatches} is more than envs_per_worker {share.envs}"
        raise UserError(f"{what}: {why}")
    if minibatches > share.samples:
        what = f"minibatches {minibatches} is more than a rollout has samples, {share.samples}"
        remedy = "give at most so many, or more --envs-per-worker or --rollout-length"
        raise UserError(f"{what}: {remedy}")
