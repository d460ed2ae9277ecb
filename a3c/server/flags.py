"""Variables on the first ps that hold the state of the run for all processes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

FIRST_PS = "/job:ps/task:0"


class Flags:
    """`ready`, `finished` (why), `attached` (by worker) and the ps's `life`, in the current graph.

    Processes with different graphs share these variables by name. They are never saved: after a
    restore the run is not finished, and no worker is attached.
    """

    def __init__(self, num_workers: int) -> None:
        with tf.device(FIRST_PS):
            self.ready = self._variable("ready", (), tf.bool)
            self.finished = self._variable("finished", (), tf.int64)
            self.attached = self._variable("attached", (num_workers,), tf.int64)
            self.life = self._variable("life", (2,), tf.int64)
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

    @staticmethod
    def _variable(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        return tf.compat.v1.get_variable(
            name,
            shape=shape,
            dtype=dtype,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=False,
            use_resource=True,
        )


def never(num_ps: int) -> list[Any]:
    """Add a dequeue per ps that never completes; it fails when that ps dies."""
    waiting = []
    for ps in range(num_ps):
        with tf.device(f"/job:ps/task:{ps}"):
            nothing = tf.queue.FIFOQueue(1, [tf.bool], [()], shared_name="nothing")
            waiting.append(nothing.dequeue())
    return waiting
