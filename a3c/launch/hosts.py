"""Decide whether a run uses several hosts, place its processes there, and check the hosts."""

import argparse
import contextlib
import logging
import math
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from a3c.cluster import hostfile
from a3c.cluster.hostfile import Host, Placement, ssh_command, ssh_shell
from a3c.cluster.plan import Plan
from a3c.cluster.topology import split_address
from a3c.config import Config, command_line
from a3c.config.options import validate
from a3c.errors import UserError
from a3c.hosts import near_end, probe
from a3c.keeper.spec import Process
from a3c.launch.preflight import shortages
from a3c.process.console import table
from a3c.process.environment import IS_CLONE
from a3c.process.process_records import write_atomically
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

COPY = "hosts.toml"  # in the run directory
FACTS_TIMEOUT_S = 60.0
REACH_TIMEOUT_S = 30.0
_COLUMNS = (
    *("host", "address", "takes", "ssh", "python", *probe.LIBRARIES),
    *("code", "cores", "memory", "ports", "reaches"),
)
_PLACES = 4
# Reads the probe's source from stdin; the rest of stdin stays for the probe itself.
_LOAD = (  # without the current folder, whose modules could hide those of Python
    "import sys;sys.path=[path for path in sys.path if path];"
    "exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'probe','exec'))"
)


def place(config: Config, chosen: argparse.Namespace) -> tuple[Config, Placement | None]:
    """The configuration and the placement; without a host file the placement is None.

    If the user gives no number of workers, every slot gets one. A resumed run keeps its number, and
    uses its previous hosts unless `--hosts` gives others.
    """
    path = chosen.hosts
    if path is None and chosen.resume and (chosen.run_dir / COPY).is_file():
        path = chosen.run_dir / COPY
    if path is None:
        return config, None
    if not IS_CLONE:
        raise UserError("--hosts needs a clone, here and on the hosts: run it in one")
    file = hostfile.read(path)
    layer = command_line.read_file(chosen.config) if chosen.config else {}
    given = hasattr(chosen, "config.workers") or "workers" in layer
    if not given and not chosen.resume:
        workers = min(file.slots, config.cluster.max_workers or file.slots)
        config = validate(config.with_cluster(workers=workers))
    return config, hostfile.place(file, config)


def save_copy(run: RunDir, placement: Placement | None) -> None:
    """Copy the host file into the run directory, for `--resume`; without one, delete the copy.

    Notes about processes on the hosts of an earlier session are deleted too.
    """
    shutil.rmtree(run.path / "elsewhere", ignore_errors=True)
    copy = run.path / COPY
    if placement:
        write_atomically(copy, placement.file.text)
    else:
        copy.unlink(missing_ok=True)


@dataclass
class Answer:
    """The answer of a host: its facts or its error, and the peers that it doesn't reach."""

    host: Host
    processes: list[Process]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    facts: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    unreached: dict[str, str] = field(default_factory=dict)  # why, by "name at address"
    open_addresses: set[str] = field(default_factory=set)  # its other addresses that also answer


class _Target(NamedTuple):
    """An address that a host shall try; the listener there sends the token."""

    host: str
    port: int
    token: str
    name: str = ""  # of the process that must be reached
    other: Answer | None = None  # the host that has this address too


def ask(plan: Plan, at_work: Sequence[Process] = ()) -> list[Answer]:
    """The answers of the hosts that get a process now; these must also reach those `at_work`."""
    cluster = [process for process in plan.processes if process.role in ("ps", "worker")]
    answers = [Answer(h, [p for p in cluster if p.host == h.name]) for h in plan.hosts]
    answers = [answer for answer in answers if answer.host.is_here or answer.processes]
    links: list[near_end.Connection] = []
    try:
        source = Path(probe.__file__).read_bytes()
        for answer in answers:
            host = answer.host
            argv = (host.python, "-c", _LOAD, str(len(source)))
            links.append(near_end.Connection(argv if host.is_here else ssh_command(host, argv)))
            ports = [split_address(process.address)[1] for process in answer.processes]
            task = {"directory": host.directory, "ports": ports, "token": answer.token}
            links[-1].send(task, before=source)
        deadline = time.monotonic() + FACTS_TIMEOUT_S
        for answer, link in zip(answers, links, strict=True):
            answer.facts = _receive(answer, link, deadline) or {}
        tried = [list(_targets(answer, answers, at_work)) for answer in answers]
        for answer, link, targets in zip(answers, links, tried, strict=True):
            if not answer.trouble:
                link.send({"targets": [target[:3] for target in targets]})
        deadline = time.monotonic() + REACH_TIMEOUT_S
        for answer, link, targets in zip(answers, links, tried, strict=True):
            message = _receive(answer, link, deadline)
            for target, why in zip(targets, message["reached"], strict=True) if message else ():
                if target.other is None and why:
                    answer.unreached[target.name] = why
                elif target.other is not None and not why:
                    target.other.open_addresses.add(target.host)
    finally:
        for link in links:
            link.close()
    return answers


def _receive(answer: Answer, link: near_end.Connection, deadline: float) -> dict[str, Any] | None:
    """The next answer of a host; None if it has failed, with the reason as its trouble."""
    if answer.trouble:
        return None
    began, host = time.monotonic(), answer.host
    message = link.receive(max(0.1, deadline - began))
    if message is None and not link.closed:
        answer.trouble = f"no answer within {time.monotonic() - began:.0f} s"
    elif message is None:
        code, words = link.close()
        answer.trouble = f"{host.python} fails ({words}): give the python there"
        if code == 255 and not host.is_here:
            answer.trouble = f"ssh fails ({words}): try `{ssh_shell(host, 'true')}`"
    return message


def _targets(
    answer: Answer, answers: Sequence[Answer], at_work: Sequence[Process]
) -> Iterator[_Target]:
    """The addresses to try: its processes' peers and the other hosts' other addresses."""
    mine = {process.role for process in answer.processes}
    for other in answers:
        busy = other.facts.get("busy", {})
        for process in other.processes if other.facts else ():
            # A worker connects to every ps; a ps connects to every worker and to the first ps.
            host, port = split_address(process.address)
            if ("ps" in mine or process.role == "ps") and str(port) not in busy:
                yield _Target(host, port, other.token, f"{process.name} at {process.address}")
        if other is not answer and other.processes:
            port = split_address(other.processes[0].address)[1]
            own = _spellings(other.host.address)
            for address in other.facts.get("addresses", ()):
                if address not in own:
                    yield _Target(address, port, other.token, other=other)
    for process in at_work if answer.processes else ():
        name = f"{process.name} at {process.address}"
        yield _Target(*split_address(process.address), "", name)


def _spellings(address: str) -> set[str]:
    """An address or a name, with the addresses of that name in their usual form."""
    with contextlib.suppress(OSError):
        return {address, *(str(found[4][0]) for found in socket.getaddrinfo(address, None))}
    return {address}


def check(plan: Plan, config: Config, at_work: Sequence[Process] = ()) -> None:
    """Probe all hosts at once and show their answers; UserError if anything prevents the run."""
    answers = ask(plan, at_work)
    ours = answers[0].facts.get("code")
    for line in table([_COLUMNS, *(_row(answer, ours) for answer in answers)]):
        log.info("%s", line)
    for line in warnings(answers, config):
        log.warning("warning: %s", line)
    found = [line for answer in answers for line in faults(answer, answers[0])]
    run = RunDir(Path(plan.run_dir))
    planned = {host.name for host in plan.hosts}
    for host in () if at_work else near_end.unconfirmed_hosts(run):  # such as after a crash
        what = f"{run.name} may still be running on {host.name}"
        call = ssh_command(host, ["true"])
        if host.name in planned or not subprocess.run(call, capture_output=True).returncode:
            found.append(f"{what}: end it with {near_end.stop_command(run.path)}")
        else:
            there = shlex.quote(hostfile.directory_of(host, run.label))
            remedy = f"if this host returns, end the run there with `pkill -f {there}`"
            why = "or its workers and the new ones with the same numbers disconnect each other"
            log.warning("warning: %s, which can't be reached: %s, %s", what, remedy, why)
    for line in found[:-1]:
        log.error("%s", line)
    if found:
        raise UserError(found[-1])


def _row(answer: Answer, ours: dict[str, str] | None) -> tuple[str, ...]:
    facts, host = answer.facts, answer.host
    workers = [p for p in answer.processes if p.role == "worker"]
    takes = [p.name for p in answer.processes if p.role == "ps"]
    names = [p.name for p in workers]
    takes += [f"{names[0]} to {workers[-1].task}"] if names[1:] else names
    head = (host.name, host.address, ", ".join(takes) or "-")
    if not facts:
        return (*head, "-" if host.is_here else "fails", *["?"] * (len(_COLUMNS) - 4))
    code = facts["code"]
    reaches = f"not {len(answer.unreached)}" if answer.unreached else "all"
    return (
        *head,
        "-" if host.is_here else "ok",
        facts["python"],
        *(facts["versions"].get(name, "none") for name in probe.LIBRARIES),
        "none" if code is None else "same" if code == ours else "other",
        str(facts["cores"]),
        f"{facts['memory_mb'] / 1000:.1f} GB",
        ", ".join(facts["busy"]) + " in use" if facts["busy"] else "free",
        "?" if answer.trouble else reaches,
    )


def faults(answer: Answer, here: Answer) -> Iterator[str]:
    name, facts = answer.host.name, answer.facts
    if answer.trouble:
        yield f"{name}: {answer.trouble}"
    if not facts:
        return
    if tuple(int(n) for n in facts["python"].split(".")[:2]) < (3, 11):
        yield f"{name}: its Python is {facts['python']}: give one of 3.11 or newer as python"
    for library in probe.LIBRARIES:
        mine, version = here.facts.get("versions", {}).get(library), facts["versions"].get(library)
        if mine and version != mine:
            yield f"{name}: {library} is {version or 'missing'}, and {mine} here: install the same"
    ours, theirs, directory = here.facts.get("code"), facts["code"], answer.host.directory
    if theirs is None:
        yield f"{name}: there is no worker.py in {directory}: copy the code there"
    elif ours is not None and theirs != ours:
        files = sorted(f for f in {*theirs, *ours} if theirs.get(f) != ours.get(f))
        more = f" and {len(files) - 1} more" if files[1:] else ""
        yield f"{name}: other code than here in {directory} ({files[0]}{more}): copy it there anew"
    for port, why in facts["busy"].items():
        yield f"{name}: port {port} is {why}: end what is there, or give another --base-port"
    for whom, why in answer.unreached.items():
        what = f"{name} doesn't reach {whom} ({why})"
        yield f"{what}: look at the address in the host file, and at firewalls on the way"


def warnings(answers: Sequence[Answer], config: Config) -> Iterator[str]:
    """Possible problems, one line each; `preflight.warnings` covers the launcher's machine."""
    places = [f"{at} ({a.host.name})" for a in answers for at in sorted(a.open_addresses)]
    if places:
        more = f" and {len(places) - _PLACES} more" if places[_PLACES:] else ""
        what = f"the ports of this run answer at {', '.join(places[:_PLACES])}{more} as well"
        remedy = "close them by a firewall, as in docs/multi-host.md"
        yield f"{what}: anyone who can reach them can run code there, so {remedy}"
    for answer in answers:
        if answer.facts and not answer.host.is_here:
            available_mb = answer.facts["memory_mb"] or math.inf  # 0 if it is unknown
            found = shortages(
                answer.processes, config, answer.facts["cores"], available_mb, "it fewer slots"
            )
            yield from (f"{answer.host.name}: {line}" for line in found)
