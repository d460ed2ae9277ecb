"""The status of one process, from its record and its files."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path

from a3c.hosts.elsewhere import Elsewhere
from a3c.process import process_records
from a3c.process.process_records import DEAD, ProcessRecord
from a3c.run import rundir
from a3c.run.rundir import RunDir
from a3c.watch.snapshot import LIVE_STATES, RESTARTING, STARTING, ProcessStatus


def life(record: ProcessRecord, run: RunDir, now: float) -> ProcessStatus:
    """The current status of a process; its pid counts only if the create time matches."""
    state = process_records.live_state(record)
    if state == DEAD and rundir.is_held(run.path):
        state = RESTARTING  # the launcher or the cockpit starts another keeper
    lives = state in LIVE_STATES and record.pid is not None
    if state == RESTARTING and record.host == process_records.this_host():
        lives = process_records.child_lives(record)
    return ProcessStatus(
        name=record.name,
        role=record.role,
        task=record.task,
        state=state,
        pid=record.pid if lives else None,
        keeper_pid=record.keeper.pid if state in LIVE_STATES else None,
        restarts=record.restarts,
        address=record.address,
        host=record.host,
        log=record.log,
        uptime_s=max(0.0, now - record.create_time) if lives and record.create_time else None,
        heartbeat_age_s=_age_s(run.heartbeat(record.name), now) if lives else None,
        last_exit=dataclasses.asdict(record.last_exit) if record.last_exit else None,
        last_line=_telling_line(record),
    )


def far_life(here: ProcessStatus, seen: Elsewhere, run: RunDir, now: float) -> ProcessStatus:
    """The status of a process on another host, whose keeper here only holds a connection."""
    if not here.is_live:
        return dataclasses.replace(here, host=seen.host)
    far = seen.record
    cut_off_s = seen.cut_off_s()
    if far is None:
        return dataclasses.replace(
            here, host=seen.host, state=STARTING, pid=None, uptime_s=None, cut_off_s=cut_off_s
        )
    lives = far.state in LIVE_STATES and far.pid is not None
    return dataclasses.replace(
        here,
        host=seen.host,
        state=far.state,
        pid=far.pid if lives else None,
        restarts=far.restarts,
        uptime_s=max(0.0, now - far.create_time) if lives and far.create_time else None,
        heartbeat_age_s=_age_s(run.heartbeat(far.name), now) if lives else None,
        last_exit=dataclasses.asdict(far.last_exit) if far.last_exit else None,
        last_line=_telling_line(far),
        cut_off_s=cut_off_s,
    )


def _telling_line(record: ProcessRecord) -> str | None:
    """The last output line of the process's first failure, else its last output line."""
    said = record.first_error or record.output_tail
    own = [line for line in said if line.strip() and " keeper: " not in line]
    return own[-1].strip() if own else None


def _age_s(path: Path, now: float) -> float | None:
    """Seconds since the last heartbeat; None before the first, while the file's mtime is 0."""
    try:
        touched = path.stat().st_mtime
    except OSError:
        return None
    return max(0.0, now - touched) if touched else None


def timestamp(iso: str) -> float:
    """A record's time in seconds since 1970; 0 if it isn't a time."""
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return 0.0
