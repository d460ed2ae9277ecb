"""The settings of a keeper as a value and as a command line, and the conversion both ways."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from a3c.errors import EXIT_USAGE
from a3c.keeper.restarts import Limits
from a3c.process.unwanted_variables import is_unwanted

HEARTBEAT_VARIABLE = "A3C_HEARTBEAT"


@dataclass(frozen=True)
class KeeperSpec:
    """What to supervise: the command, its name, its time-outs and limits.

    Without `heartbeat` the keeper doesn't check for silence. A time-out of 0 is off, and so is a
    memory limit of 0.
    `network` is the file that lists the holders of the run's own network; if it is given, the
    process runs in that network.
    `restarts` is the number of restarts under earlier keepers.
    `parent`: the keeper ends when this pid ends (0: the process that starts the keeper; None: no
    pid).
    `env` shows in the process list, so it must not hold secrets.
    """

    record: Path
    name: str
    role: str
    log: Path
    argv: tuple[str, ...]
    task: int = 0
    address: str = ""
    heartbeat: Path | None = None
    heartbeat_timeout_s: float = 120.0
    start_timeout_s: float = 300.0
    grace_s: float = 15.0
    max_memory_mb: float = 0.0
    limits: Limits = field(default_factory=Limits)
    restarts: int = 0
    echo: bool = False
    parent: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    network: Path | None = None
    cwd: Path | None = None


def child_environment(base: Mapping[str, str], spec: KeeperSpec) -> dict[str, str]:
    """The environment of the process: `base` without proxies, which gRPC would use, plus `env`."""
    env = {name: value for name, value in base.items() if not is_unwanted(name)}
    env.pop(HEARTBEAT_VARIABLE, None)  # it may belong to an outer keeper
    env.update(spec.env)
    if spec.heartbeat is not None:
        env[HEARTBEAT_VARIABLE] = str(spec.heartbeat.absolute())
    return env


def command(spec: KeeperSpec, python: str = sys.executable) -> list[str]:
    """The keeper's command line for `spec`; it must run where `a3c` can be imported."""
    values: dict[str, object] = {
        "--record": spec.record,
        "--name": spec.name,
        "--role": spec.role,
        "--task": spec.task,
        "--address": spec.address,
        "--log": spec.log,
        "--heartbeat": spec.heartbeat,
        "--heartbeat-timeout": spec.heartbeat_timeout_s,
        "--start-timeout": spec.start_timeout_s,
        "--grace": spec.grace_s,
        "--max-memory": spec.max_memory_mb,
        "--max-restarts": spec.limits.max_restarts,
        "--max-crashes": spec.limits.max_crashes,
        "--first-delay": spec.limits.first_delay_s,
        "--longest-delay": spec.limits.longest_delay_s,
        "--healthy": spec.limits.healthy_s,
        "--restarts": spec.restarts,
        "--die-with-parent": spec.parent,
        "--network": spec.network,
        "--cwd": spec.cwd,
    }
    flags = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    flags += [f"--env={name}={value}" for name, value in spec.env]
    flags += ["--echo"] if spec.echo else []
    return [python, "-m", "a3c.keeper", *flags, "--", *spec.argv]


def parse(arguments: Sequence[str]) -> KeeperSpec:
    """The spec from a command line; on a mistake the process prints one line and exits with 2."""
    arguments = list(arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = _parser()
    options = parser.parse_args(arguments[:split])
    argv = tuple(arguments[split + 1 :])
    if not argv:
        parser.error("no command given: put it after --")
    return KeeperSpec(
        record=options.record,
        name=options.name,
        role=options.role,
        log=options.log,
        argv=argv,
        task=options.task,
        address=options.address,
        heartbeat=options.heartbeat,
        heartbeat_timeout_s=options.heartbeat_timeout,
        start_timeout_s=options.start_timeout,
        grace_s=options.grace,
        max_memory_mb=options.max_memory,
        limits=Limits(*(getattr(options, name) for name in _LIMIT_FLAGS)),
        restarts=options.restarts,
        echo=options.echo,
        parent=options.die_with_parent,
        env=tuple(options.env),
        network=options.network,
        cwd=options.cwd,
    )


_LIMIT_FLAGS = ("max_restarts", "max_crashes", "first_delay", "longest_delay", "healthy")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"keeper: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m a3c.keeper",
        usage="%(prog)s --record FILE --name NAME --role ROLE --log FILE [options] -- ARGV...",
        description="Keep one process alive, and write down how it fares.",
        allow_abbrev=False,
    )
    limits, spec = Limits(), KeeperSpec
    add = parser.add_argument
    add("--record", type=Path, required=True, help="the file to keep current, JSON")
    add("--name", required=True, help="for example worker-0")
    add("--role", required=True, help="for example worker")
    add("--task", type=_at_least(int, 0), default=spec.task)
    add("--address", default=spec.address, help="host:port of the process, for the record")
    add("--log", type=Path, required=True, help="stdout and stderr are appended here")
    add(
        "--heartbeat",
        type=Path,
        help=f"file that the process touches; it is told in {HEARTBEAT_VARIABLE}",
    )
    add("--heartbeat-timeout", type=_seconds, default=spec.heartbeat_timeout_s, metavar="S")
    add("--start-timeout", type=_seconds, default=spec.start_timeout_s, metavar="S")
    add("--grace", type=_seconds, default=spec.grace_s, metavar="S", help="between TERM and KILL")
    add("--max-memory", type=_megabytes, default=spec.max_memory_mb, metavar="MB", help="resident")
    add("--max-restarts", type=_at_least(int, 0), default=limits.max_restarts, metavar="N")
    add("--max-crashes", type=_at_least(int, 1), default=limits.max_crashes, metavar="N")
    add("--first-delay", type=_seconds, default=limits.first_delay_s, metavar="S")
    add("--longest-delay", type=_seconds, default=limits.longest_delay_s, metavar="S")
    add("--healthy", type=_seconds, default=limits.healthy_s, metavar="S")
    add("--restarts", type=_at_least(int, 0), default=spec.restarts, help="that went before")
    add("--echo", action="store_true", help="copy the output to stdout too")
    add("--die-with-parent", type=_at_least(int, 0), nargs="?", const=0, metavar="PID")
    add("--env", type=_assignment, action="append", default=[], metavar="K=V")
    add("--network", type=Path, help="file by which processes share a network without others in it")
    add("--cwd", type=Path, help="where the process starts")
    return parser


def _at_least(kind: Callable[[str], float], low: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= low):
            raise argparse.ArgumentTypeError(f"{text!r}: give a number of {low} or more")
        return value

    return convert


_seconds = _megabytes = _at_least(float, 0.0)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=VALUE")
    return name, value
