"""The warnings about a run, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from a3c.process.console import count
from a3c.process.process_records import DEAD
from a3c.watch.snapshot import (
    CHIEF,
    LIVE_STATES,
    RESTARTING,
    RUNNING,
    WILDCARDS,
    ProcessStatus,
    Status,
    duration,
    printable,
)

_LOOP_RESTARTS = 3
_HEALTHY_S = 60.0
_SILENT_S = 30.0
_LATE_INTERVALS = 3
_FAILED_SAVES = 3
_SLOW_PS_SHARE = 0.5
_LINE_CHARS = 160
_NAMES = 4


def of(status: Status) -> list[str]:
    """The warnings of a run, the worst first."""
    live = status.state in LIVE_STATES
    return [
        *([status.disk_trouble] if live and status.disk_trouble else ()),
        *_grouped((p.name, _failure(p, live)) for p in status.processes),
        *_grouped((p.name, _loop(p)) for p in status.processes),
        *_grouped((p.name, _waiting(p)) for p in status.processes),
        *(_cut_off(status) if live else ()),
        *_losses(status),
        *_restarts(status),
        *(_silence(status) if live else ()),
        *(_late_metrics(status) if live else ()),
        *(_slow_ps(status) if live else ()),
        *(_failing_saves(status) if live else ()),
        *(_late_checkpoint(status) if live else ()),
        *_damage(status),
        *_drops(status),
        *_exposure(status),
    ]


def _grouped(troubles: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """One line for all processes with the same problem."""
    names: dict[str, list[str]] = {}
    for name, trouble in troubles:
        if trouble:
            names.setdefault(trouble, []).append(name)
    for trouble, who in names.items():
        yield _shortened(f"{_listed(who)} {trouble}")


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMES - 1])} and {len(names) - _NAMES + 1} more"


def _failure(p: ProcessStatus, live: bool) -> str | None:
    if p.state == "failed":
        return f"failed, {_last_exit(p)}{_said(p)}"
    if p.state == DEAD and live:
        return "went together with the keeper: nobody starts it again"
    return None


def _loop(p: ProcessStatus) -> str | None:
    if not is_crash_looping(p):
        return None
    return f"crashes again and again: {p.restarts} restarts, {_last_exit(p)}{_said(p)}"


def _waiting(p: ProcessStatus) -> str | None:
    """The peer that the process waits for, according to its last output line."""
    _, waits, whom = (p.last_line or "").partition(" waiting for ")
    return f"waiting for {printable(whom)}" if waits and p.is_live else None


def _cut_off(status: Status) -> Iterator[str]:
    """Hosts that can't be reached; their processes may still work."""
    hosts: dict[str, list[ProcessStatus]] = {}
    for p in status.processes:
        if p.cut_off_s is not None and p.is_live:
            hosts.setdefault(p.host, []).append(p)
    for host, cut in hosts.items():
        for_s = max(p.cut_off_s or 0.0 for p in cut)
        names = _listed([p.name for p in cut])
        yield f"no connection to {host} for {duration(for_s)}: {names} may be at work there"


def _losses(status: Status) -> Iterator[str]:
    """The last time that the ps was lost."""
    count = len(status.losses)
    if count:
        times = f" ({count} times so far)" if count > 1 else ""
        yield f"the ps was lost: {status.losses[-1]}{times}"


def _restarts(status: Status) -> Iterator[str]:
    """Processes that were restarted and have worked since."""
    calm = [
        p
        for p in status.processes
        if p.restarts and p.state != "failed" and not is_crash_looping(p)
    ]
    if len(calm) == 1:
        yield f"{calm[0].name} was restarted {_times(calm[0].restarts)}, {_last_exit(calm[0])}"
    elif calm:
        yield "restarted: " + _listed([f"{p.name} {_times(p.restarts)}" for p in calm])


def is_crash_looping(p: ProcessStatus) -> bool:
    """Whether a process was restarted often and its uptime is short."""
    young = p.state == RESTARTING or (p.uptime_s is not None and p.uptime_s < _HEALTHY_S)
    return p.restarts >= _LOOP_RESTARTS and p.is_live and young


def _silence(status: Status) -> Iterator[str]:
    silent = {
        p.name: p.heartbeat_age_s
        for p in status.processes
        if p.state == RUNNING and p.heartbeat_age_s is not None and p.heartbeat_age_s > _SILENT_S
    }
    if silent:
        yield f"{_listed(list(silent))}: no sign of life for {duration(max(silent.values()))}"


def _late_metrics(status: Status) -> Iterator[str]:
    limit_s = max(15.0, 5 * status.metrics_interval_s)
    age_s = status.metrics_age_s
    if status.state == RUNNING and age_s is not None and age_s > limit_s:
        yield f"the figures are {duration(age_s)} old: {CHIEF} has written none since"


def _slow_ps(status: Status) -> Iterator[str]:
    """The ps is overloaded: more workers would only make gradients staler."""
    share = status.exchange_share
    if share is not None and share > _SLOW_PS_SHARE:
        yield (
            f"workers wait for the ps {share:.0%} of their time, and gradients are "
            f"{status.staleness or 0:.1f} steps old: give more --ps, a larger --smallest-push, or "
            "--wire-dtype float16"
        )


def _failing_saves(status: Status) -> Iterator[str]:
    if status.failed_saves >= _FAILED_SAVES:
        yield (
            f"the last {status.failed_saves} checkpoints could not be written: "
            f"logs/{CHIEF}.log says why"
        )


def _late_checkpoint(status: Status) -> Iterator[str]:
    newest, interval_s = status.checkpoint, status.checkpoint_interval_s
    late_s = _LATE_INTERVALS * interval_s
    if status.state != RUNNING or status.since_start_s <= late_s:
        return
    if newest is None:
        yield f"there is no checkpoint yet; one is due every {duration(interval_s)}"
    elif newest.age_s > late_s:
        yield (
            f"the newest checkpoint is {duration(newest.age_s)} old; "
            f"one is due every {duration(interval_s)}"
        )


def _damage(status: Status) -> Iterator[str]:
    if status.damaged:
        yield f"{_listed(status.damaged)} can't be read: what they say is left out here"


def _drops(status: Status) -> Iterator[str]:
    if status.dropped_rollouts:
        yield f"{count(status.dropped_rollouts, 'rollout')} dropped: loss or gradient not finite"
    if status.dropped_reports:
        yield f"{count(status.dropped_reports, 'game')} not counted: the queue on the ps was full"


def _exposure(status: Status) -> Iterator[str]:
    if status.exposed:
        who = _listed(list(dict.fromkeys(place.split(" ")[0] for place in status.exposed)))
        everywhere = all(_is_wildcard(place) for place in status.exposed)
        where = "on all interfaces" if everywhere else "to other machines"
        yield (
            f"{who} listen {where}, as TensorFlow's servers do: "
            "whoever reaches their ports can run code here"
        )


def _is_wildcard(place: str) -> bool:
    host = place.split(" ")[1].rpartition(":")[0]
    return host in WILDCARDS


def _last_exit(p: ProcessStatus) -> str:
    last = p.last_exit
    if last is None:
        return "together with its keeper"
    reasons = {
        "heartbeat": " for its silence",
        "start-timeout": " for not getting ready",
        "memory": " for its memory",
    }
    how = f"ended by {last['signal']}" if last["signal"] else f"left with {last['code']}"
    return f"last {how}{reasons.get(last['reason'] or '', '')}"


def _said(p: ProcessStatus) -> str:
    return f": {printable(p.last_line)}" if p.last_line else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…"
