"""Rows of metrics as TensorBoard event files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

log = logging.getLogger(__name__)


class TensorBoardSink:
    """Writes scalars over env steps; a resumed run continues its curves without zig-zag."""

    def __init__(self, directory: Path) -> None:
        with tf.Graph().as_default():  # the v1 writer refuses to be made in eager mode
            self._writer = tf.compat.v1.summary.FileWriter(str(directory))

    def write(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Write one row of scalars."""
        values = [
            tf.compat.v1.Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if "/" in name
        ]
        self._writer.add_summary(tf.compat.v1.Summary(value=values), env_steps)
        self._writer.flush()

    def restart(self, env_steps: int) -> None:
        """Have TensorBoard drop what lies beyond `env_steps`: that past was lost."""
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._writer.add_session_log(start, env_steps + 1)
        self._writer.flush()
