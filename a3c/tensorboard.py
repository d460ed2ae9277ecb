"""Rows of metrics as TensorBoard event files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

log = logging.getLogger(__name__)


class TensorBoardSink:
    """Writes scalars over env steps; a resumed run continues its curves without zig-zag.

    Training goes on when the disk is full, for which TensorFlow's own writer, whose thread dies of
    it, is no use: an event file is a file of records.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None
        self._failing = False

    def write(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Write one row of scalars."""
        values = [
            tf.compat.v1.Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if "/" in name
        ]
        self._append(step=env_steps, summary=tf.compat.v1.Summary(value=values))

    def restart(self, env_steps: int) -> None:
        """Have TensorBoard drop what lies beyond `env_steps`: that past was lost."""
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._append(step=env_steps + 1, session_log=start)

    def _append(self, **event: Any) -> None:
        try:
            if self._writer is None:
                self._writer = self._open()
            self._put(self._writer, **event)
        except (OSError, tf.errors.OpError) as error:
            if not self._failing:
                reason = str(error).splitlines()[0]
                log.error("can't write to %s (%s); training goes on", self._directory, reason)
            self._failing = True
            self._writer = None  # half a record may be in that file: go on in another
        else:
            self._failing = False

    def _open(self) -> Any:
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{os.uname().nodename}.{os.getpid()}"
        writer = tf.io.TFRecordWriter(str(self._directory / name))
        self._put(writer, file_version="brain.Event:2")
        return writer

    @staticmethod
    def _put(writer: Any, **event: Any) -> None:
        record = tf.compat.v1.Event(wall_time=time.time(), **event)
        writer.write(record.SerializeToString())
        writer.flush()
