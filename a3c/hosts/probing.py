"""Probe all hosts of a plan at the same time: their resources and which peers they reach."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a3c.cluster.hostfile import Host, ssh_command, ssh_shell
from a3c.cluster.plan import Plan, Process
from a3c.cluster.topology import split_address
from a3c.hosts import probe
from a3c.hosts.connection import Connection

FACTS_TIMEOUT_S = 60.0
REACH_TIMEOUT_S = 30.0
# Reads the probe's source from stdin; the rest of stdin stays for the probe itself.
_LOAD = "import sys;exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'probe','exec'))"


@dataclass
class Answer:
    """The answer of a host: its facts or its error, and the peers that it doesn't reach."""

    host: Host
    processes: list[Process]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    facts: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    unreached: dict[str, str] = field(default_factory=dict)  # why, by "name at address"
    also_at: set[str] = field(default_factory=set)  # its other addresses that also answer


@dataclass
class _Target:
    """An address that a host shall try; the listener there sends the token."""

    host: str
    port: int
    token: str
    name: str = ""  # of the process that must be reached
    other: Answer | None = None  # the host that has this address too


def ask(plan: Plan, at_work: Sequence[Process] = ()) -> list[Answer]:
    """The answers of this host and of every host that gets a process now.

    `at_work` are processes that already run and that each new process must reach.
    """
    cluster = [process for process in plan.processes if process.role in ("ps", "worker")]
    answers = [Answer(h, [p for p in cluster if p.host == h.name]) for h in plan.hosts]
    answers = [answer for answer in answers if answer.host.is_here or answer.processes]
    links: list[Connection] = []
    try:
        for answer in answers:
            links.append(_connect(answer))
        deadline = time.monotonic() + FACTS_TIMEOUT_S
        for answer, link in zip(answers, links, strict=True):
            answer.facts = _receive(answer, link, deadline) or {}
        tried = [list(_targets(answer, answers, at_work)) for answer in answers]
        for answer, link, targets in zip(answers, links, tried, strict=True):
            if not answer.trouble:
                link.send({"targets": [(t.host, t.port, t.token) for t in targets]})
        deadline = time.monotonic() + REACH_TIMEOUT_S
        for answer, link, targets in zip(answers, links, tried, strict=True):
            message = _receive(answer, link, deadline)
            for target, why in zip(targets, message["reached"], strict=True) if message else ():
                if target.other is None and why:
                    answer.unreached[target.name] = why
                elif target.other is not None and not why:
                    target.other.also_at.add(target.host)
    finally:
        for link in links:
            link.close()
    return answers


def _connect(answer: Answer) -> Connection:
    """Start the probe on a host, and send it its source and its task."""
    host, source = answer.host, Path(probe.__file__).read_bytes()
    argv = (host.python, "-c", _LOAD, str(len(source)))
    link = Connection(argv if host.is_here else ssh_command(host, argv))
    ports = [split_address(process.address)[1] for process in answer.processes]
    task = {"directory": host.directory, "ports": ports, "token": answer.token}
    link.send(task, before=source)
    return link


def _receive(answer: Answer, link: Connection, deadline: float) -> dict[str, Any] | None:
    """The next answer of a host; None if it has failed, with the reason as its trouble."""
    if answer.trouble:
        return None
    began, host = time.monotonic(), answer.host
    message = link.answer(max(0.1, deadline - began))
    if message is None and not link.closed:
        answer.trouble = f"no answer within {time.monotonic() - began:.0f} s"
    elif message is None:
        code, words = link.close()
        words = words or f"it left with {code}"
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
            for address in other.facts.get("addresses", ()):
                if address != other.host.address:
                    yield _Target(address, port, other.token, other=other)
    for process in at_work if answer.processes else ():
        name = f"{process.name} at {process.address}"
        yield _Target(*split_address(process.address), "", name)
