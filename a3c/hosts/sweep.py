"""End a run's processes on other hosts after their connections were lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable

from a3c.cluster.hostfile import Host, directory_of, ssh_command
from a3c.cluster.plan import Plan
from a3c.errors import UserError
from a3c.hosts import elsewhere
from a3c.process import console
from a3c.run.rundir import RunDir, copied_from

_TIMEOUT_S = 60.0


def hosts_in_doubt(run: RunDir) -> list[Host]:
    """The hosts with processes that may still run, because no end is recorded here."""
    if not (run.path / "elsewhere").is_dir() or copied_from(run):
        return []
    plan = Plan.load(run)
    doubtful = set()
    for process in (*plan.processes, *plan.reserved):
        seen = elsewhere.read(elsewhere.path_of(run, process.name))
        if not process.is_here and seen is not None and not seen.has_ended:
            doubtful.add(process.host)
    return [host for host in plan.hosts if host.name in doubtful]


def sweep(run: RunDir, hosts: Iterable[Host], *, now: bool) -> tuple[list[str], list[str]]:
    """End the run's keepers on these hosts; return the ended processes and one line per error.

    The requests go to all hosts at the same time.
    """
    links = [(host, _start(run, host, now=now)) for host in hosts]
    ended: list[str] = []
    troubles: list[str] = []
    for host, link in links:
        try:
            said, errors = link.communicate(timeout=_TIMEOUT_S)
            answer = json.loads(said.splitlines()[-1])
        except subprocess.TimeoutExpired:
            link.kill()
            link.communicate()
            troubles.append(f"{host.name} gives no answer")
        except (ValueError, IndexError):
            words = errors.decode(errors="replace").strip().splitlines()
            reason = words[-1] if words else f"ssh left with {link.returncode}"
            troubles.append(f"{host.name} can't be reached ({reason})")
        else:
            ended += answer["ended"]
            troubles += [f"{name} on {host.name} did not end" for name in answer["left"]]
            _forget(run, host)
    return ended, troubles


def _start(run: RunDir, host: Host, *, now: bool) -> subprocess.Popen[bytes]:
    link = subprocess.Popen(
        ssh_command(host, (host.python, "-m", "a3c.hosts.far_end"), directory=host.directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert link.stdin
    request = {"sweep": directory_of(host, run.label), "now": now}
    with contextlib.suppress(OSError):  # ssh reports its error on stderr
        link.stdin.write(json.dumps(request).encode() + b"\n")
        link.stdin.flush()
    return link


def _forget(run: RunDir, host: Host) -> None:
    """Delete the files about a host's processes that recorded no end; they have ended now."""
    for process in (plan := Plan.load(run)).processes + plan.reserved:
        path = elsewhere.path_of(run, process.name)
        if process.host == host.name and (seen := elsewhere.read(path)) and not seen.has_ended:
            path.unlink(missing_ok=True)


def end_left(run: RunDir, *, now: bool) -> list[str]:
    """End processes that remain on other hosts; return their names. UserError if that fails."""
    hosts = hosts_in_doubt(run)
    if not hosts:
        return []
    ended, troubles = sweep(run, hosts, now=now)
    if troubles:
        raise UserError(
            f"{'; '.join(troubles)}: processes of {run.name} may be at work there still; "
            f"give `{console.command('launch_cluster.py')} stop {run.name}` again later"
        )
    return ended
