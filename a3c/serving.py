"""A parameter server: hold the variables, and leave when the run is over."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import tensorflow as tf

from a3c.cluster import Cluster, Task, split_address
from a3c.config import Config
from a3c.errors import RetryableError
from a3c.flags import Flags
from a3c.heartbeat import Heartbeat
from a3c.signals import StopRequest

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.25
LINGER_S = 8.0  # how long a ps that may leave waits for workers that still talk to it


def start_server(cluster: Cluster, task: Task, threads: int) -> Any:
    """The process's end of TensorFlow's runtime; it can't be stopped but by leaving."""
    address = cluster.addresses(task.job)[task.index]
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(cluster.as_dict()),
            job_name=task.job,
            task_index=task.index,
            config=tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=threads, device_count={"GPU": 0}
            ),
        )
    except tf.errors.OpError as error:
        _, port = split_address(address)
        raise RetryableError(
            f"{task.name} can't listen on port {port} ({error.message}): does another process?"
        ) from None


def serve(cluster: Cluster, task: Task, config: Config, stop: StopRequest, beat: Heartbeat) -> None:
    """Serve until the chief says that the run is finished, or a signal comes.

    `Server.join` never returns, so the ps is a client of the first ps, which may be itself, and
    polls there. When it may leave it waits for attached workers, but not for ever.
    """
    server = start_server(cluster, task, config.cluster.ps_threads)
    with tf.Graph().as_default() as graph:
        flags = Flags(len(cluster.workers))
        exists = tf.stack([tf.compat.v1.is_variable_initialized(v) for v in flags.variables])
    session = tf.compat.v1.Session(
        server.target,
        graph=graph,
        config=tf.compat.v1.ConfigProto(
            device_filters=["/job:ps/task:0", f"/job:ps/task:{task.index}"],
            operation_timeout_in_ms=int(config.cluster.ps_timeout_s * 1000),
        ),
    )
    log.info("%s serves at %s, pid %d", task.name, cluster.ps[task.index], os.getpid())
    parting = _Parting(stop)
    while True:
        beat.beat()
        try:
            blank = not session.run(exists).all()
            finished, attached = (
                (0, []) if blank else session.run([flags.read_finished, flags.read_attached])
            )
        except tf.errors.OpError as error:
            if task.index and stop.requested:
                return
            raise RetryableError(f"the first ps is lost ({type(error).__name__})") from None
        if parting.is_due(bool(finished), sum(attached)):
            log.info("%s leaves", task.name)
            return
        stop.wait(POLL_INTERVAL_S) if not stop.requested else time.sleep(POLL_INTERVAL_S)


class _Parting:
    """When a ps that may leave really leaves."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._deadline: float | None = None

    def is_due(self, finished: bool, num_attached: int) -> bool:
        """Whether nobody needs this ps any more, or it has waited long enough."""
        if not finished and not self._stop.requested:
            return False
        now = time.monotonic()
        self._deadline = self._deadline or now + LINGER_S
        return num_attached == 0 or now >= self._deadline
