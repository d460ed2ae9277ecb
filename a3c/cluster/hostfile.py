"""The hosts of a run: the TOML file of `--hosts` (docs/multi-host.md), who runs where, and ssh."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from a3c.cluster.topology import Cluster, Task, count_up, is_loopback, split_address
from a3c.config import Config
from a3c.config.command_line import parse_file, suggest
from a3c.config.options import shown
from a3c.errors import UserError
from a3c.keeper.spec import HERE
from a3c.process.console import count
from a3c.run.rundir import REPOSITORY

BASE_PORT = 2222  # below the ports that kernels use for outgoing connections
_KEYS: dict[str, type] = {"host": str, "address": str, "slots": int, "python": str}
_KEYS |= {"directory": str, "user": str, "port": int, "options": list}
_FORMS = {str: "a text", int: "a whole number", list: "a list of texts"}


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    slots: int
    python: str
    directory: str
    user: str | None = None
    port: int | None = None
    options: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        return self.name == HERE

    @property
    def destination(self) -> list[str]:
        port = ["-p", str(self.port)] if self.port else []
        user = ["-l", self.user] if self.user else []
        return [*port, *user, self.name]


@dataclass(frozen=True)
class HostFile:
    hosts: tuple[Host, ...]  # in the order in which they get workers; the launcher's is first
    ps: tuple[str, ...]  # the names of the hosts of the ps
    text: bytes = b""

    @property
    def slots(self) -> int:
        return sum(host.slots for host in self.hosts)


def read(path: Path) -> HostFile:
    """The hosts in a file; any error is a UserError of one line that names the file."""
    subject = f"--hosts {path}"
    if path.suffix == ".json":  # `parse_file` would read it as JSON
        raise UserError(f"{subject}: give a TOML file")
    tables = parse_file(path, subject)
    try:
        return replace(parse(tables), text=path.read_bytes())
    except UserError as error:
        raise UserError(f"{subject}: {error}") from None


def parse(tables: dict[str, Any]) -> HostFile:
    _check_keys(tables, ("ps", "host"), "the file")
    entries = tables.get("host")
    if not isinstance(entries, list) or not entries:
        raise UserError("there is no host: add a [[host]] with host, address and slots")
    hosts = [_host(entry, number) for number, entry in enumerate(entries, start=1)]
    _check_together(hosts)
    # The launcher's machine is first: it runs the chief, which stores the checkpoints.
    hosts.sort(key=lambda host: not host.is_here)
    said, known = tables.get("ps", hosts[0].name), [host.name for host in hosts]
    ps = [said] if isinstance(said, str) else said
    if not isinstance(ps, list) or not ps or not all(isinstance(name, str) for name in ps):
        raise UserError(f"ps = {said!r} is no host: give the name of one, or a list of names")
    for name in ps:
        if name not in known:
            raise UserError(f"ps = {name!r} is none of the hosts: they are {', '.join(known)}")
    for host in hosts:
        if not host.slots and host.name not in ps:
            raise UserError(f"{host.name} has no slots and no ps: give it slots, or take it out")
    if not hosts[0].is_here or not hosts[0].slots:
        remedy = 'add host = "here" with slots'
        raise UserError(f"no slot is here, where worker-0 keeps the checkpoints: {remedy}")
    return HostFile(tuple(hosts), tuple(ps))


def _host(entry: Any, number: int) -> Host:
    where = f"host {number}"
    if not isinstance(entry, dict):
        raise UserError(f"{where} is no table: write [[host]] above its keys")
    if isinstance(entry.get("host"), str):
        where = f"host {entry['host']!r}"
    _check_keys(entry, tuple(_KEYS), where)
    for key in ("host", "address", "slots"):
        if key not in entry:
            raise UserError(f"{where} has no {key}: give one")
    for key, value in entry.items():
        _check_value(where, key, value)
        if entry["host"] == HERE and key in ("user", "port", "options"):
            raise UserError(f'host "here" is reached without ssh: take {key} out')
        if entry["host"] == HERE and key in ("python", "directory"):
            raise UserError(f'host "here" has the launcher\'s own {key}: take it out')
    # By default Python and the code are where they are on this machine.
    python, directory = Path(sys.executable), entry.get("directory", str(REPOSITORY))
    if not directory.startswith("/"):
        raise UserError(f"{where}: directory = {directory!r} is relative: give the whole path")
    if python.is_relative_to(REPOSITORY):
        python = python.relative_to(REPOSITORY)
    return Host(
        name=entry["host"],
        address=entry["address"].removeprefix("[").removesuffix("]"),
        slots=entry["slots"],
        python=os.path.join(directory, entry.get("python", python)),  # noqa: PTH118
        directory=directory,
        user=entry.get("user"),
        port=entry.get("port"),
        options=tuple(entry.get("options", ())),
    )


def _check_keys(table: dict[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UserError(f"{where} has the unknown key {key!r}: {suggest(key, known)}")


def _check_value(where: str, key: str, value: Any) -> None:
    kind: Any = _KEYS[key]
    parts = value if isinstance(value, list) else [value]
    if type(value) is not kind or (kind is list and not all(type(part) is str for part in parts)):
        raise UserError(f"{where}: {key} = {shown(value)} is not {_FORMS[kind]}")
    for text in parts:
        if isinstance(text, str) and (not text or not text.isprintable()):
            raise UserError(f"{where}: {key} = {text!r} is empty or not printable: give another")
    low, high = (0, 100_000) if key == "slots" else (1, 65535)
    if kind is int and not low <= value <= high:
        what = f"{where}: {key} = {shown(value)} is not allowed"
        raise UserError(f"{what}: give one from {low} to {high}")
    # ssh would take a leading dash as an option.
    if key in ("host", "user") and not re.fullmatch(r"(?!-)[A-Za-z0-9_.:%@-]+", value):
        raise UserError(f"{where}: {key} = {value!r} is no name: give one that ssh knows")
    if key == "address":
        bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        try:
            split_address(f"[{bare}]:1" if ":" in bare else f"{bare}:1")
        except UserError:
            what = f"{where}: address = {value!r} is refused"
            raise UserError(f"{what}: give a name or an address, without a port") from None


def _check_together(hosts: Sequence[Host]) -> None:
    for key in ("name", "address"):
        seen = set()
        for host in hosts:
            value = getattr(host, key).lower().removesuffix(".")
            if value in seen:
                word = "host" if key == "name" else key
                raise UserError(f"{word} {getattr(host, key)!r} is given twice: once is enough")
            seen.add(value)
    inside = [host for host in hosts if is_loopback(host.address)]
    outside = [host for host in hosts if host not in inside]
    if inside and outside:
        what = f"{inside[0].name} has the loopback address {inside[0].address}"
        lost = f"{outside[0].name} can't reach"
        raise UserError(f"{what}, which {lost}: give its address on the private network")


@dataclass(frozen=True)
class Placement:
    cluster: Cluster
    hosts: dict[str, Host]  # by the process's name
    file: HostFile


def directory_of(host: Host, label: str) -> str:
    return str(PurePosixPath(host.directory) / "runs" / label)


def place(file: HostFile, config: Config) -> Placement:
    """Fill the hosts' slots in order; ports count up from `--base-port` on each host."""
    settings = config.cluster
    if settings.num_addresses > file.slots:
        flag = "--max-workers" if settings.max_workers else "--workers"
        what = f"{flag} {settings.num_addresses}: the hosts have {count(file.slots, 'slot')}"
        raise UserError(f"{what}: give fewer, or more slots")
    if settings.isolation == "on":
        raise UserError("--isolation on: a network of one machine's own reaches no other host")
    slots = [host for host in file.hosts for _ in range(host.slots)]
    named = {host.name: host for host in file.hosts}
    chosen = {Task("ps", i): named[file.ps[i % len(file.ps)]] for i in range(settings.ps)}
    chosen |= {Task("worker", i): slots[i] for i in range(settings.num_addresses)}
    places, base = [host.address for host in chosen.values()], settings.base_port or BASE_PORT
    made = count_up(places, base, settings.ps, trusted_network=settings.trusted_network)
    return Placement(made, {task.name: host for task, host in chosen.items()}, file)


def ssh_command(host: Host, argv: Sequence[str], *, directory: str | None = None) -> list[str]:
    """The local command that runs `argv` on a host, without a terminal, in `directory`."""
    there = shlex.join(argv)
    if directory:
        there = f"cd {shlex.quote(directory)} && exec {there}"
    # BatchMode: nobody could type a password. ServerAlive: detects a dead connection.
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    options += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    # The host file's own options come first, because ssh uses the first value of an option.
    return ["ssh", "-T", *host.options, *options, *host.destination, there]


def ssh_shell(host: Host, line: str) -> str:
    """A local shell command that runs `line` in a shell on the host."""
    return shlex.join(["ssh", *host.options, *host.destination, line])
