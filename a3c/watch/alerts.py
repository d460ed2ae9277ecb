"""The warnings about a run, one line each."""

import os
from collections.abc import Iterator, Sequence

from a3c.cluster.topology import CHIEF
from a3c.keeper.restarts import HEALTHY_S
from a3c.process.console import count
from a3c.process.process_records import this_host
from a3c.watch.snapshot import LIVE_STATES, ProcessStatus, Status, duration, fresh_s, printable

_LINE_CHARS = 160
_NAMES = 4


def warnings(status: Status) -> list[str]:
    live = status.state in LIVE_STATES
    troubles: dict[str, list[str]] = {}  # the names of the processes with each trouble
    for p in status.processes:
        if failure := _failure(p, live):
            troubles.setdefault(failure, []).append(p.name)
    for p in status.processes:
        _, waits, whom = (p.last_line or "").partition(" waiting for ")
        if waits and p.is_live:
            troubles.setdefault(f"waiting for {printable(whom)}", []).append(p.name)
    lines = [f"{_listed(names)} {trouble}" for trouble, names in troubles.items()]
    return [
        *([status.disk_trouble] if live and status.disk_trouble else ()),
        *(x if len(x) <= _LINE_CHARS else x[: _LINE_CHARS - 1] + "…" for x in lines),
        *_cut_off(status),
        *_restarts(status),
        *(_late(status) if live else ()),
        *_data(status),
    ]


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMES - 1])} and {len(names) - _NAMES + 1} more"


def _failure(p: ProcessStatus, live: bool) -> str | None:
    said = f": {printable(p.last_line)}" if p.last_line else ""
    if p.state == "failed":
        return f"failed, {_last_exit(p)}{said}"
    if p.state == "dead" and live:
        return "ended together with its keeper, so nothing restarts it"
    if is_crash_looping(p):
        return f"crashes again and again: {p.restarts} restarts, {_last_exit(p)}{said}"
    return None


def is_crash_looping(p: ProcessStatus) -> bool:
    is_recent = p.state == "restarting" or (p.uptime_s is not None and p.uptime_s < HEALTHY_S)
    return p.restarts >= 3 and p.is_live and is_recent


def _last_exit(p: ProcessStatus) -> str:
    last = p.last_exit
    if last is None:
        return "together with its keeper"
    reasons = {
        "heartbeat": " because it gave no heartbeat",
        "start-timeout": " because it was not ready in time",
        "memory": " because it used too much memory",
    }
    return f"last {last}{reasons.get(last.reason or '', '')}"


def _cut_off(status: Status) -> Iterator[str]:
    """Hosts that can't be reached; their processes may still work."""
    cut = [p for p in status.processes if p.cut_off_s is not None]
    for host in dict.fromkeys(p.host for p in cut):
        names = _listed([p.name for p in cut if p.host == host])
        for_s = max(p.cut_off_s or 0.0 for p in cut if p.host == host)
        yield f"no connection to {host} for {duration(for_s)}: {names} may still be running there"


def _restarts(status: Status) -> Iterator[str]:
    """The last time that the run went back, and the processes that have worked since a restart."""
    if status.losses:
        times = f" ({len(status.losses)} times so far)" if len(status.losses) > 1 else ""
        yield f"the run {status.losses[-1]}{times}"
    restarted = [
        (p, "once" if p.restarts == 1 else f"{p.restarts} times")
        for p in status.processes
        if p.restarts and p.state != "failed" and not is_crash_looping(p)
    ]
    if len(restarted) == 1:
        p, times = restarted[0]
        yield f"{p.name} was restarted {times}, {_last_exit(p)}"
    elif restarted:
        yield "restarted: " + _listed([f"{p.name} {times}" for p, times in restarted])


def _late(status: Status) -> Iterator[str]:
    """What is late in a live run: heartbeats, metrics, exchanges, checkpoints."""
    is_running = status.state == "running"
    ages = {p.name: p.heartbeat_age_s or 0.0 for p in status.processes if p.state == "running"}
    if silent := {name: age_s for name, age_s in ages.items() if age_s > 30}:
        yield f"{_listed(list(silent))}: no heartbeat for {duration(max(silent.values()))}"
    age_s, limit_s = status.metrics_age_s, fresh_s(status.metrics_interval_s)
    if is_running and age_s is not None and age_s > limit_s:
        yield f"the metrics are {duration(age_s)} old: {CHIEF} has written no row since"
    starts = any(p.state == "starting" for p in status.processes)  # a start slows all others down
    share = None if starts else status.exchange_share
    if share is not None and share > 0.5:
        remedy = (
            "give a larger --smallest-push or --rollout-length, more --ps, or --wire-dtype float16"
        )
        cores, host = len(os.sched_getaffinity(0)), this_host()
        here = sum(p.state == "running" and p.host == host for p in status.processes)
        if here > cores + 1:  # then processes wait for a free core
            remedy = f"{here} processes share {count(cores, 'core')}; give fewer --workers"
        old = f"gradients are {status.staleness or 0:.1f} steps old"
        yield f"workers wait for the ps {share:.0%} of their time, and {old}: {remedy}"
    if status.failed_saves >= 3:
        lost = f"the last {status.failed_saves} checkpoints could not be written"
        yield f"{lost}: logs/{CHIEF}.log says why"
    late_s = 3 * status.checkpoint_interval_s
    if is_running and status.since_start_s > late_s:
        due = f"one is due every {duration(status.checkpoint_interval_s)}"
        if status.checkpoint is None:
            yield f"there is no checkpoint yet; {due}"
        elif status.checkpoint.age_s > late_s:
            yield f"the newest checkpoint is {duration(status.checkpoint.age_s)} old; {due}"


def _data(status: Status) -> Iterator[str]:
    """Unreadable files, dropped data, and ports that other machines can reach."""
    if status.damaged:
        yield f"{_listed(status.damaged)} can't be read: ignored"
    if status.dropped_rollouts:
        yield f"{count(status.dropped_rollouts, 'rollout')} dropped: loss or gradient not finite"
    if status.dropped_reports:
        yield f"{count(status.dropped_reports, 'game')} not counted: the queue on the ps was full"
    if status.exposed:
        who = _listed([place.split(" ")[0] for place in status.exposed])
        listens, ports = "listen", "their ports"
        if len(status.exposed) == 1:
            listens, ports = "listens", "its port"
        what = f"{who} {listens} on all interfaces, as TensorFlow's servers do"
        yield f"{what}: anyone who can reach {ports} can run code here"
