"""Whether the hosts can run the plan: a table of the probes' answers, the errors, the warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from a3c.config import Config
from a3c.hosts import probe
from a3c.hosts.asking import Answer
from a3c.launch.preflight import PROCESS_MB
from a3c.process.console import count

_COLUMNS = (
    *("host", "address", "takes", "ssh", "python", *probe.LIBRARIES),
    *("code", "cores", "memory", "ports", "reaches"),
)
_PLACES = 4
_OLDEST_PYTHON = (3, 11)


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
    head = (host.name, host.address, _takes(answer))
    link = "-" if host.is_here else "ok"
    if not facts:
        return (*head, link if host.is_here else "fails", *["?"] * (len(_COLUMNS) - 4))
    libraries = (facts["versions"].get(name, "none") for name in probe.LIBRARIES)
    code = facts["code"]
    same = "none" if code is None else "same" if code == ours else "other"
    busy = ", ".join(facts["busy"]) + " in use" if facts["busy"] else "free"
    memory = f"{facts['memory_mb'] / 1000:.1f} GB"
    reaches = f"not {len(answer.unreached)}" if answer.unreached else "all"
    if answer.trouble:
        reaches = "?"
    rest = (same, str(facts["cores"]), memory, busy, reaches)
    return (*head, link, facts["python"], *libraries, *rest)


def _takes(answer: Answer) -> str:
    workers = [p for p in answer.processes if p.role == "worker"]
    servers = [p.name for p in answer.processes if p.role == "ps"]
    if len(workers) > 1:
        return ", ".join([*servers, f"{workers[0].name} to {workers[-1].task}"])
    return ", ".join([*servers, *(p.name for p in workers)]) or "-"


def faults(answers: Sequence[Answer]) -> list[str]:
    """Errors that prevent the run, one line each."""
    return [line for answer in answers for line in _faults(answer, answers[0])]


def _faults(answer: Answer, here: Answer) -> Iterator[str]:
    name, facts = answer.host.name, answer.facts
    if answer.trouble:
        yield f"{name}: {answer.trouble}"
    if not facts:
        return
    if tuple(int(n) for n in facts["python"].split(".")[:2]) < _OLDEST_PYTHON:
        yield f"{name}: its Python is {facts['python']}: give one of 3.11 or newer as python"
    yield from _versions(answer, here)
    yield from _code(answer, here)
    for port, why in facts["busy"].items():
        yield f"{name}: port {port} is {why}: end what is there, or give another --base-port"
    for whom, why in answer.unreached.items():
        yield (
            f"{name} doesn't reach {whom} ({why}): look at the address in the host file, "
            "and at firewalls on the way"
        )


def _versions(answer: Answer, here: Answer) -> Iterator[str]:
    name, theirs = answer.host.name, answer.facts["versions"]
    for library in probe.LIBRARIES:
        mine = here.facts.get("versions", {}).get(library)
        if mine and library not in theirs:
            yield f"{name}: {answer.host.python} has no {library}: install {mine}, as here"
        elif mine and theirs[library] != mine:
            yield f"{name}: {library} is {theirs[library]}, and {mine} here: install the same"


def _code(answer: Answer, here: Answer) -> Iterator[str]:
    name, directory = answer.host.name, answer.host.directory
    theirs, ours = answer.facts["code"], here.facts.get("code")
    if theirs is None:
        yield f"{name}: there is no worker.py in {directory}: copy the code there"
    elif ours is not None and theirs != ours:
        files = sorted(f for f in {*theirs, *ours} if theirs.get(f) != ours.get(f))
        count = f" and {len(files) - 1} more" if files[1:] else ""
        yield f"{name}: other code than here in {directory} ({files[0]}{count}): copy it there anew"


def warnings(answers: Sequence[Answer], config: Config) -> list[str]:
    """Possible problems, one line each; `preflight.warnings` covers the launcher's machine."""
    lines = list(_exposed(answers))
    for answer in answers:
        if answer.facts and not answer.host.is_here:
            lines += _too_little(answer, config)
    return lines


def _exposed(answers: Sequence[Answer]) -> Iterator[str]:
    places = [f"{address} ({a.host.name})" for a in answers for address in sorted(a.also_at)]
    if places:
        more = f" and {len(places) - _PLACES} more" if places[_PLACES:] else ""
        yield (
            f"the ports of this run answer at {', '.join(places[:_PLACES])}{more} as well: "
            "whoever reaches them can run code there, so close them by a firewall, as in "
            "docs/multi-host.md"
        )


def _too_little(answer: Answer, config: Config) -> Iterator[str]:
    name, facts = answer.host.name, answer.facts
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
