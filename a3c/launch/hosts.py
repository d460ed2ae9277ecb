"""Decide whether a run uses several hosts, place its processes there, and check the hosts.

The check shows a table of the probes' answers, warnings, and the errors that prevent the run.
"""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from a3c.cluster import hostfile
from a3c.cluster.hostfile import Placement
from a3c.cluster.plan import Plan, Process
from a3c.config import Config, command_line
from a3c.config.options import validate
from a3c.errors import UserError
from a3c.hosts import elsewhere, probe, probing
from a3c.hosts.probing import Answer
from a3c.launch.preflight import PROCESS_MB
from a3c.process.console import command, count
from a3c.run import rundir
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

COPY = "hosts.toml"  # in the run directory
_COLUMNS = (
    *("host", "address", "takes", "ssh", "python", *probe.LIBRARIES),
    *("code", "cores", "memory", "ports", "reaches"),
)
_PLACES = 4
_OLDEST_PYTHON = (3, 11)


def place(config: Config, chosen: argparse.Namespace) -> tuple[Config, Placement | None]:
    """The configuration and the placement; without a host file the placement is None.

    If the user gives no number of workers, every slot gets one. A resumed run uses its previous
    hosts unless `--hosts` gives others.
    """
    path = file_of(chosen)
    if path is None:
        return config, None
    file = hostfile.read(path)
    layer = command_line.read_file(chosen.config) if chosen.config else {}
    if not hasattr(chosen, "config.workers") and "workers" not in layer.get("cluster", {}):
        workers = min(file.slots, config.cluster.max_workers or file.slots)
        config = validate(config.with_cluster(workers=workers))
    return config, hostfile.place(file, config)


def file_of(chosen: argparse.Namespace) -> Path | None:
    """The host file: `--hosts`, or the copy in the directory of a resumed run; None without one."""
    given: Path | None = chosen.hosts
    if given is None and chosen.resume and chosen.run_dir:
        kept: Path = chosen.run_dir / COPY
        return kept if kept.is_file() else None
    return given


def save_copy(run: RunDir, text: bytes | None) -> None:
    """Copy the host file into the run directory, for `--resume`; without one, delete the copy."""
    copy = run.path / COPY
    with rundir.refusing(run.path):
        if text is None:
            copy.unlink(missing_ok=True)
        else:
            copy.write_bytes(text)


# --- the check ------------------------------------------------------------------------------------


def check(plan: Plan, config: Config, at_work: Sequence[Process] = ()) -> None:
    """Probe the hosts and show their answers; UserError if anything prevents the run.

    `at_work` are the running ps that the processes of the plan, added workers, must reach.
    """
    answers = probing.ask(plan, at_work)
    for line in table(answers):
        log.info("%s", line)
    for line in warnings(answers, config):
        log.warning("warning: %s", line)
    found = [line for answer in answers for line in faults(answer, answers[0])]
    run = RunDir(Path(plan.run_dir))
    doubtful = [] if at_work else [host.name for host in elsewhere.hosts_in_doubt(run)]
    if doubtful:  # of an earlier session, as after a crash here
        stop = f"{command('launch_cluster.py')} stop {shlex.quote(str(run.path))}"
        names = ", ".join(doubtful)
        found.append(f"{run.name} may be at work still on {names}: end that with `{stop}`")
    for line in found[:-1]:
        log.error("%s", line)
    if found:
        raise UserError(found[-1])


def table(answers: Sequence[Answer]) -> list[str]:
    """The answers as a table, one line per host."""
    ours = answers[0].facts.get("code")
    rows = [_COLUMNS, *(_row(answer, ours) for answer in answers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(answer: Answer, ours: dict[str, str] | None) -> tuple[str, ...]:
    facts, host = answer.facts, answer.host
    workers = [p for p in answer.processes if p.role == "worker"]
    takes = [p.name for p in answer.processes if p.role == "ps"]
    if len(workers) > 1:
        takes.append(f"{workers[0].name} to {workers[-1].task}")
    else:
        takes += [p.name for p in workers]
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
    """Errors of a host that prevent the run, one line each."""
    name, facts = answer.host.name, answer.facts
    if answer.trouble:
        yield f"{name}: {answer.trouble}"
    if not facts:
        return
    if tuple(int(n) for n in facts["python"].split(".")[:2]) < _OLDEST_PYTHON:
        yield f"{name}: its Python is {facts['python']}: give one of 3.11 or newer as python"
    for library in probe.LIBRARIES:
        mine, version = here.facts.get("versions", {}).get(library), facts["versions"].get(library)
        if mine and version is None:
            yield f"{name}: {answer.host.python} has no {library}: install {mine}, as here"
        elif mine and version != mine:
            yield f"{name}: {library} is {version}, and {mine} here: install the same"
    yield from _code(answer, here.facts.get("code"))
    for port, why in facts["busy"].items():
        yield f"{name}: port {port} is {why}: end what is there, or give another --base-port"
    for whom, why in answer.unreached.items():
        yield (
            f"{name} doesn't reach {whom} ({why}): look at the address in the host file, "
            "and at firewalls on the way"
        )


def _code(answer: Answer, ours: dict[str, str] | None) -> Iterator[str]:
    name, directory, theirs = answer.host.name, answer.host.directory, answer.facts["code"]
    if theirs is None:
        yield f"{name}: there is no worker.py in {directory}: copy the code there"
    elif ours is not None and theirs != ours:
        files = sorted(f for f in {*theirs, *ours} if theirs.get(f) != ours.get(f))
        more = f" and {len(files) - 1} more" if files[1:] else ""
        yield f"{name}: other code than here in {directory} ({files[0]}{more}): copy it there anew"


def warnings(answers: Sequence[Answer], config: Config) -> Iterator[str]:
    """Possible problems, one line each; `preflight.warnings` covers the launcher's machine."""
    places = [f"{address} ({a.host.name})" for a in answers for address in sorted(a.also_at)]
    if places:
        more = f" and {len(places) - _PLACES} more" if places[_PLACES:] else ""
        yield (
            f"the ports of this run answer at {', '.join(places[:_PLACES])}{more} as well: "
            "whoever reaches them can run code there, so close them by a firewall, as in "
            "docs/multi-host.md"
        )
    for answer in answers:
        name, facts = answer.host.name, answer.facts
        if not facts or answer.host.is_here:
            continue
        workers = sum(p.role == "worker" for p in answer.processes)
        if workers * config.cluster.worker_threads > facts["cores"]:
            here, cores = count(workers, "worker"), count(facts["cores"], "core")
            yield f"{name}: {here} on {cores}: more of them than cores make a run no faster"
        need_mb = sum(PROCESS_MB[p.role] for p in answer.processes)
        if 0 < facts["memory_mb"] < need_mb:
            yield (
                f"{name}: some {need_mb / 1000:.1f} GB of memory are needed and "
                f"{facts['memory_mb'] / 1000:.1f} GB are available: give it fewer slots"
            )
