"""Probe all hosts of a plan at the same time: their resources and which peers they reach."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from a3c.cluster.hostfile import Host, ssh_command, ssh_shell
from a3c.cluster.plan import Plan, Process
from a3c.cluster.topology import split_address
from a3c.hosts import probe

FACTS_TIMEOUT_S = 60.0
REACH_TIMEOUT_S = 30.0
# Reads the probe's source from stdin; the rest of stdin stays for the probe itself.
_LOAD = "import sys;exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'probe','exec'))"

Target = tuple[str, int, str]  # host, port, token


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


def ask(plan: Plan, at_work: Sequence[Process] = ()) -> list[Answer]:
    """The answers of this host and of every host that gets a process now.

    `at_work` are processes that already run and that each new process must reach.
    """
    by_host = {host.name: [p for p in plan.processes if p.host == host.name] for host in plan.hosts}
    cluster = {name: [p for p in ps if p.role in ("ps", "worker")] for name, ps in by_host.items()}
    taking = [host for host in plan.hosts if host.is_here or cluster[host.name]]
    answers = [Answer(host, cluster[host.name]) for host in taking]
    with contextlib.ExitStack() as stack:
        links = [_Link(answer) for answer in answers]
        for link in links:
            stack.callback(link.close)
        _collect(links, FACTS_TIMEOUT_S, "facts")
        for link in links:
            link.ask_whom_it_reaches(answers, at_work)
        _collect(links, REACH_TIMEOUT_S, "reached")
    return answers


def _collect(links: Sequence[_Link], timeout_s: float, key: str) -> None:
    deadline = time.monotonic() + timeout_s
    for link in links:
        link.hear(key, max(0.1, deadline - time.monotonic()))


class _Link:
    """The connection to the probe on one host."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self._host = answer, answer.host
        self._targets: list[tuple[str, Target, Answer | None]] = []
        self._begun = b""  # of a line
        source = Path(probe.__file__).read_bytes()
        argv = (self._host.python, "-c", _LOAD, str(len(source)))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the link
        self._process = subprocess.Popen(
            argv if self._host.is_here else ssh_command(self._host, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # `select` can't see data in a read buffer
            start_new_session=True,
        )
        ports = [split_address(process.address)[1] for process in answer.processes]
        task = {"directory": self._host.directory, "ports": ports, "token": answer.token}
        self._send(source + json.dumps(task).encode() + b"\n")

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout
        return self._process.stdout

    def _send(self, data: bytes) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def hear(self, key: str, timeout_s: float) -> None:
        """Wait for an answer and store it, or store the reason why none came."""
        if self._answer.trouble:
            return
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not select.select([self._output], [], [], left_s)[0]:
                break
            data = os.read(self._output.fileno(), 1 << 16)  # a line may come in pieces
            if not data:
                self._answer.trouble = self._last_words()
                return
            *lines, self._begun = (self._begun + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # output of a login script is not JSON
                    message = json.loads(line)
                    if isinstance(message, dict):
                        self._take(key, message)
                        return
        self._answer.trouble = f"no answer within {timeout_s:.0f} s"

    def _take(self, key: str, message: dict[str, Any]) -> None:
        if key == "facts":
            self._answer.facts = message
            return
        for (name, target, other), why in zip(self._targets, message["reached"], strict=True):
            if other is None and why:
                self._answer.unreached[name] = why
            elif other is not None and not why:
                other.also_at.add(target[0])

    def ask_whom_it_reaches(self, answers: Sequence[Answer], at_work: Sequence[Process]) -> None:
        """Send the addresses to try: its processes' peers and the other hosts' other addresses."""
        mine = {process.role for process in self._answer.processes}
        for other in answers:
            busy = other.facts.get("busy", {})
            for process in other.processes if other.facts else ():
                # A worker connects to every ps; a ps connects to every worker and to the first ps.
                if "ps" in mine or process.role == "ps":
                    host, port = split_address(process.address)
                    name = f"{process.name} at {process.address}"
                    if str(port) not in busy:
                        self._targets.append((name, (host, port, other.token), None))
            if other is not self._answer and other.processes:
                port = split_address(other.processes[0].address)[1]
                for address in other.facts.get("addresses", ()):
                    if address != other.host.address:
                        self._targets.append(("", (address, port, other.token), other))
        for process in at_work if self._answer.processes else ():
            name = f"{process.name} at {process.address}"
            self._targets.append((name, (*split_address(process.address), ""), None))
        targets = [target for _, target, _ in self._targets]
        self._send(json.dumps({"targets": targets}).encode() + b"\n")

    def _last_words(self) -> str:
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:  # the process closed its output but still runs
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        words = said[-1] if said else f"it left with {code}"
        if code == 255 and not self._host.is_here:
            return f"ssh fails ({words}): try `{ssh_shell(self._host, 'true')}`"
        return f"{self._host.python} fails ({words}): give the python there"

    def close(self) -> None:
        """End the probe."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()
