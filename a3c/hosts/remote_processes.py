"""The files that `a3c.hosts.near_end` writes here, and how to end those processes later."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from a3c.cluster.hostfile import Host, directory_of, ssh_command
from a3c.cluster.plan import Plan
from a3c.errors import UserError
from a3c.hosts.connection import Connection
from a3c.process import console
from a3c.process.process_records import ENDED_STATES, ProcessRecord, read_json, write_atomically
from a3c.run.rundir import RunDir, copied_from

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class LastSeen:
    host: str
    record: ProcessRecord | None
    cut_off_at: float | None  # seconds since 1970; None while connected


def path_of(run: RunDir, name: str) -> Path:
    return run.path / "elsewhere" / f"{name}.json"


def read(path: Path) -> LastSeen | None:
    return read_json(LastSeen, path)


def write(path: Path, seen: LastSeen) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, json.dumps(asdict(seen)), durable=False)


def unconfirmed_hosts(run: RunDir) -> list[Host]:
    """The hosts with processes that may still run, because no end is recorded here."""
    doubtful = {seen.host for _, seen in _without_end(run)}
    if not doubtful or copied_from(run):
        return []
    return [host for host in Plan.load(run).hosts if host.name in doubtful]


def _without_end(run: RunDir) -> Iterator[tuple[Path, LastSeen]]:
    """The files about processes on other hosts with no recorded end."""
    for path in (run.path / "elsewhere").glob("*.json"):
        seen = read(path)
        if seen and not (seen.record and seen.record.state in ENDED_STATES):
            yield path, seen


def end_remote(run: RunDir, *, now: bool) -> list[str]:
    """End what remains on other hosts, on all at once; return the names. UserError on failure."""
    links = []
    for host in unconfirmed_hosts(run):
        argv = (host.python, "-m", "a3c.hosts.far_end")
        link = Connection(ssh_command(host, argv, directory=host.directory))
        link.send({"end_run": directory_of(host, run.label), "now": now})
        links.append((host, link))
    ended: list[str] = []
    troubles: list[str] = []
    for host, link in links:
        answer = link.answer(_TIMEOUT_S)
        timed_out = answer is None and not link.closed
        _, words = link.close()
        if timed_out:
            troubles.append(f"{host.name} gives no answer")
        elif answer is None:
            troubles.append(f"{host.name} can't be reached ({words})")
        else:
            ended += answer["ended"]
            troubles += [f"{name} on {host.name} did not end" for name in answer["left"]]
            for path, seen in _without_end(run):
                if seen.host == host.name:
                    path.unlink(missing_ok=True)
    if troubles:
        stop = f"`{console.command('launch_cluster.py')} stop {run.name}`"
        what = f"{'; '.join(troubles)}: processes of {run.name} may be at work there still"
        raise UserError(f"{what}; give {stop} again later")
    return ended
