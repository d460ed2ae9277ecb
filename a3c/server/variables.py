"""Variables on the ps, and the flags on the first ps: the state of the run for all processes.

Processes with different graphs share variables by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

FIRST_PS = "/job:ps/task:0"


def zeros(name: str, shape: Sequence[int], dtype: Any) -> Any:
    """A variable in the current graph, on the device of the current scope."""
    return tf.compat.v1.get_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=tf.compat.v1.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )


class Flags:
    """`ready`, `finished` (why), `attached` (by worker) and the ps's `life`, in the current graph.

    They are never saved: after a restore the run is not finished, and no worker is attached.
    """

    def __init__(self, num_workers: int) -> None:
        with tf.device(FIRST_PS):
            self.ready = zeros("ready", (), tf.bool)
            self.finished = zeros("finished", (), tf.int64)
            self.attached = zeros("attached", (num_workers,), tf.int64)
            self.life = zeros("life", (2,), tf.int64)
            self.new_life = tf.compat.v1.placeholder(tf.int64, [2])
            self.set_life = self.life.assign(self.new_life, read_value=False)
            self.read_life = self.life.read_value()
            self.set_ready = self.ready.assign(True, read_value=False)
            self.why = tf.compat.v1.placeholder(tf.int64, [])
            self.set_finished = self.finished.assign(self.why, read_value=False)
            self.read_finished = self.finished.read_value()
            self.read_attached = self.attached.read_value()
            self.worker = tf.compat.v1.placeholder(tf.int64, [])
            self.presence = tf.compat.v1.placeholder(tf.int64, [])
            self.set_attached = tf.compat.v1.scatter_update(
                self.attached, [self.worker], [self.presence]
            ).op

    @property
    def variables(self) -> list[Any]:
        """All flags."""
        return [self.ready, self.finished, self.attached, self.life]
