"""The record file of a process, which its keeper writes."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from a3c.errors import UserError
from a3c.keeper.capture import Capture
from a3c.keeper.spec import KeeperSpec
from a3c.process.process_records import (
    Identity,
    ProcessRecord,
    identify,
    keeper_lives,
    read_record,
    this_host,
    write_record,
)

_TAIL_INTERVAL_S = 1.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RecordFile:
    """The record of a process on disk; a failed write is tried again every second."""

    def __init__(self, spec: KeeperSpec, capture: Capture) -> None:
        """Write the first record; raises UserError if that fails, unless the disk is full."""
        self._path = spec.record
        self._capture = capture
        self._failed = False
        self._saved: ProcessRecord | None = None
        self._saved_at = 0.0
        self.now = _first_record(spec)
        try:
            write_record(self._path, self.now)
        except OSError as error:
            raise_unless_full(error, self._path)

    def change(self, **changes: Any) -> None:
        """Change the record in memory; the next `update` writes it together with its own change."""
        self.now = dataclasses.replace(self.now, **changes)

    def update(self, **changes: Any) -> None:
        """Change the record and write it."""
        self.change(**changes)
        self._save()

    def tick(self) -> None:
        """Write the record, at most once a second, if a write failed or there is new output."""
        stale = tuple(self._capture.tail()) != self.now.output_tail
        if time.monotonic() - self._saved_at >= _TAIL_INTERVAL_S and (
            stale or self._saved != self.now
        ):
            self._save()

    def _save(self) -> None:
        tail = tuple(self._capture.tail())
        self.now = dataclasses.replace(self.now, output_tail=tail, updated_at=now_text())
        self._saved_at = time.monotonic()
        try:
            write_record(self._path, self.now)
            self._saved = self.now
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._capture.note(f"cannot write {self._path.name}: {error.strerror}; trying on")


def _first_record(spec: KeeperSpec) -> ProcessRecord:
    return ProcessRecord(
        name=spec.name,
        role=spec.role,
        task=spec.task,
        address=spec.address,
        pid=None,
        create_time=None,
        birth=None,
        state="starting",
        restarts=spec.restarts,
        last_exit=None,
        first_error=None,
        output_tail=(),
        started_at=now_text(),
        updated_at=now_text(),
        keeper=identify(os.getpid()) or Identity(os.getpid(), 0.0),
        host=this_host(),
        log=str(spec.log.absolute()),
        heartbeat=None if spec.heartbeat is None else str(spec.heartbeat.absolute()),
        argv=spec.argv,
    )


def refuse_second_keeper(spec: KeeperSpec) -> None:
    """Raise UserError if a running keeper already holds the record of `spec`."""
    record = read_record(spec.record)
    if record is None or record.host != this_host() or record.keeper.pid == os.getpid():
        return
    if keeper_lives(record):
        raise UserError(
            f"{record.name} is kept already by pid {record.keeper.pid} ({spec.record}): "
            "stop that run, or start this one in another directory"
        )


def raise_unless_full(error: OSError, path: Path) -> None:
    """Raise UserError for an error on `path`, unless the disk is full, which may be temporary."""
    if error.errno not in _DISK_FULL:
        where = error.filename or path
        raise UserError(f"cannot write {where}: {error.strerror}; give another file") from error


def now_text() -> str:
    """The current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
