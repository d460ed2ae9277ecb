"""A parameter server: hold the variables, and exit when the run is over."""

import logging
import os
import time
from typing import Any

import tensorflow as tf

from a3c.cluster.topology import Cluster, Task, split_address
from a3c.config import Config
from a3c.errors import RetryableError
from a3c.process.heartbeat import Heartbeat
from a3c.process.process_records import has_loopback_only
from a3c.process.signals import StopRequest
from a3c.process.startup import keep_freed_memory
from a3c.server.exchange import END_REASONS, FINISHED, PS_LEAVES
from a3c.server.sessions import UnclosedSession
from a3c.server.store import Flags

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.25
LINGER_S = 8.0  # how long a ps waits for attached workers before it exits
CHIEF_LINGER_S = 120.0  # more for the chief, which may be restarting in order to save


def start_server(cluster: Cluster, task: Task, threads: int) -> Any:
    """Start TensorFlow's server in this process; only the end of the process stops it."""
    keep_freed_memory()
    _, port = split_address(cluster.addresses(task.job)[task.index])
    if not has_loopback_only(os.getpid()):
        log.warning("port %d is open: anyone who can reach this machine can run code on it", port)
    # TensorFlow's defaults, one spinning thread per core, took half of a ps's time.
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        device_count={"GPU": 0},
    )
    config.experimental.disable_thread_spinning = True
    spec = tf.train.ClusterSpec(cluster.as_dict())
    try:
        return tf.distribute.Server(spec, job_name=task.job, task_index=task.index, config=config)
    except tf.errors.OpError as error:
        raise RetryableError(
            f"{task.name} can't listen on port {port} ({error.message}): is it in use?"
        ) from None


def serve(cluster: Cluster, task: Task, config: Config, stop: StopRequest, beat: Heartbeat) -> None:
    """Serve until the chief says that the run is finished, or a signal comes.

    `Server.join` never returns. So every ps polls the first ps (the first ps polls itself). At the
    end the ps waits for attached workers, for `LINGER_S`, and longer for the chief. After a signal
    it first tells the workers that it leaves, so that the chief saves and all of them detach.
    """
    server = start_server(cluster, task, config.cluster.ps_threads)
    with tf.Graph().as_default() as graph:
        flags = Flags(len(cluster.workers))
        exist = tf.reduce_all([tf.compat.v1.is_variable_initialized(v) for v in flags.variables])
        announce = flags.finished.assign(FINISHED.index(PS_LEAVES), read_value=False)
    peers = ("/job:ps/task:0", f"/job:ps/task:{task.index}")
    session = UnclosedSession(server.target, graph, config.cluster.ps_timeout_s, *peers)
    log.info("serving at %s, pid %d", cluster.ps[task.index], os.getpid())
    began: float | None = None  # when the wait for attached workers began
    while True:
        beat.beat()
        try:
            finished, attached = 0, [False]  # as long as the ps is not initialised
            if session.run(exist):
                finished, attached = session.run([flags.finished, flags.attached])
                if stop.is_set() and not finished:
                    session.run(announce)
        except tf.errors.OpError as error:
            if task.index and began:
                break  # the first ps has exited too
            raise RetryableError(f"the first ps is lost ({type(error).__name__})") from None
        is_over = FINISHED[finished] in END_REASONS
        if is_over or stop.is_set():
            began = began or time.monotonic()
            patience_s = LINGER_S
            if is_over and attached[0]:  # the chief may hang until its keeper's time-out
                patience_s = config.cluster.worker_timeout_s + CHIEF_LINGER_S
            if not any(attached) or time.monotonic() >= began + patience_s:
                break
        time.sleep(POLL_INTERVAL_S)
    if task.index == 0 and len(cluster.ps) > 1:
        time.sleep(4 * POLL_INTERVAL_S)  # the other ps poll this one to learn that they may exit
    log.info("leaving")
