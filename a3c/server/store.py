"""The shared state of the cluster on the ps, and the calls that a worker makes to it.

The state is the parameters, the optimizer's statistics, `global_step`, the running observation
statistics, the queue of episode reports and a few flags.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.cluster.topology import Cluster, Task
from a3c.config import Config
from a3c.errors import RetryableError
from a3c.run.rows import PsStart
from a3c.server.exchange import FINISHED, GATHERED, Exchange, Push, Reply
from a3c.server.layout import by_parameter, by_shard, cut
from a3c.server.optimizers import is_value_only, make_variable
from a3c.server.sessions import UnclosedSession, exit_after, raise_if_ps_lost

FIRST_PS = "/job:ps/task:0"
EPISODE_QUEUE_CAPACITY = 100_000
EPISODE_FIELDS = 4  # worker, return, length, env step at the episode's end
FAIL_WITHIN_S = 0.3  # how long a call may take to fail by itself after the loss of a ps


class Flags:
    """`ready`, `finished` (why), `attached` (by worker) and `ps_start`, in the current graph.

    They are never saved: after a restore the run is not finished, and no worker is attached.
    """

    def __init__(self, num_workers: int) -> None:
        with tf.device(FIRST_PS):
            self.ready = make_variable("ready", (), tf.bool)
            self.finished = make_variable("finished", (), tf.int64)
            self.attached = make_variable("attached", (num_workers,), tf.int64)
            self.ps_start = make_variable("ps_start", (2,), tf.int64)
            self.variables = [self.ready, self.finished, self.attached, self.ps_start]


class Snapshot(NamedTuple):
    """The variables of a checkpoint, and how many updates ended while they were read."""

    values: dict[str, np.ndarray]
    updates_during: int
    samples_waiting: int  # gathered for the next step; a checkpoint does not hold their gradients


class Store:
    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        target: str,
        shapes: Mapping[str, tuple[int, ...]],
        statistics_size: int,
        config: Config,
    ) -> None:
        """Build the graph for parameters of these shapes, and connect to the ps."""
        self._timeout_s = config.cluster.connect_timeout_s
        num_ps = len(cluster.ps)
        is_separate = is_value_only if config.learning.has_critic_settings else lambda _: False
        self.layout = cut(shapes, num_ps, is_separate)
        # All other variables are on the first ps.
        place = {shard.name: shard.ps for shard in self.layout.shards}
        setter = tf.compat.v1.train.replica_device_setter(
            worker_device=FIRST_PS,
            cluster=tf.train.ClusterSpec(cluster.as_dict()),
            ps_strategy=lambda op: place.get(op.name, 0),
        )
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.compat.v1.device(setter):
            self._flags = Flags(len(cluster.workers))
            self._exchange = Exchange(
                self.layout, config, num_ps, statistics_size, self._flags.finished
            )
            self._ps_watch = []  # a dequeue per ps that never completes; it fails when that ps dies
            for ps in range(num_ps):
                with tf.device(f"/job:ps/task:{ps}"):
                    never_filled = tf.queue.FIFOQueue(1, [tf.bool], [()], shared_name="nothing")
                    self._ps_watch.append(never_filled.dequeue())
            self._attach, self._detach = (
                tf.compat.v1.scatter_update(self._flags.attached, [task.index], [present]).op
                for present in (1, 0)
            )
            self._build_reports()
            self._build_saving()
        self.graph.finalize()
        graph, timeout_s = self.graph, config.cluster.ps_timeout_s
        me = f"/job:{task.job}/task:{task.index}"
        self._session = UnclosedSession(target, graph, timeout_s, "/job:ps", me)
        self._lost: RetryableError | None = None  # the error, once a ps is lost
        self._calling_since: float | None = None
        self._has_left = False
        targets = [f"grpc://{ps}" for ps in cluster.ps]
        with exit_after(self._timeout_s), raise_if_ps_lost():
            masters = [UnclosedSession(ps, graph, timeout_s, "/job:ps") for ps in targets]
            self._exchange.connect(masters)

    def _run(self, fetches: Any, *arguments: Any, **options: Any) -> Any:
        with raise_if_ps_lost():
            return self._session.run(fetches, *arguments, **options)

    def is_ready(self) -> bool:
        """Whether the ps are initialised; False if any variable is missing."""
        with exit_after(self._timeout_s):
            return bool(self._run(self._all_exist) and self._run(self._flags.ready))

    def initialize(self, values: Mapping[str, np.ndarray]) -> None:
        """Initialise the ps, write `values`, and note that the ps starts at their env step.

        The ps counts as uninitialised until `ready` is written last, although it may have been
        initialised before, where only another ps started again.
        """
        self._assign({"ready": False})
        self._run(list(self._initializers.values()))
        self.drain()  # drop reports of rolled-back games; they remain if another ps was lost
        self._assign(by_shard(values, self.layout, self._saved))
        self._assign({"ps_start": PsStart(secrets.randbits(53), int(values.get("global_step", 0)))})
        self._assign({"ready": True})

    def _assign(self, values: Mapping[str, Any]) -> None:
        """Run the initializers of these variables with other values, as `Variable.load` does."""
        writes = {self._initializers[name]: value for name, value in values.items()}
        self._run(list(writes), {write.inputs[1]: value for write, value in writes.items()})

    def attach(self, on_stuck: Callable[[RetryableError], None]) -> PsStart:
        """Register this worker, so that the ps waits for it; returns how the ps started.

        If the ps is lost and a call hangs, `on_stuck` is called in another thread.
        """
        self._run(self._attach)
        ps_start = PsStart(*self._run(self._flags.ps_start).tolist())
        threading.Thread(target=self._watch, args=[on_stuck], daemon=True).start()
        return ps_start

    def _watch(self, on_stuck: Callable[[RetryableError], None]) -> None:
        """Wait for the loss of a ps; then call `on_stuck` if a call hangs instead of failing.

        A call to the master of a lost ps waits until the session's time-out, and its thread can't
        be interrupted. The watch goes through this process's own master, which fails at once.
        """
        no_timeout = tf.compat.v1.RunOptions(timeout_in_ms=10**12)
        try:
            self._run(self._ps_watch, options=no_timeout)
        except RetryableError as error:
            self._lost = error
        lost_at = time.monotonic()
        while self._lost and not self._has_left:
            since = self._calling_since
            if since is not None and time.monotonic() > max(since, lost_at) + FAIL_WITHIN_S:
                on_stuck(self._lost)
                return
            time.sleep(0.05)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Context around a call that may hang if a ps is lost; raises if one is lost already."""
        if self._lost:
            raise self._lost
        self._calling_since = time.monotonic()
        try:
            with raise_if_ps_lost():
                yield
        finally:
            self._calling_since = None

    def detach(self) -> None:
        """Unregister this worker, after its last push; from now on a ps may exit."""
        self._has_left = True
        self._run(self._detach)

    def pull(self) -> Reply:
        with self._calling():
            return self._exchange.pull()

    def push(self, push: Push) -> Reply:
        with self._calling():
            return self._exchange.push(push)

    def overwrite_parameters(self, parameters: np.ndarray) -> None:
        """Replace the parameters on the ps; counters and the optimizer's statistics stay."""
        with self._calling():
            self._assign({s.name: parameters[s.start : s.stop] for s in self.layout.shards})

    def report(self, episodes: np.ndarray) -> bool:
        """Put `[N, 4]` episode reports into the queue for the chief; False when it is full."""
        return bool(self._run(self._enqueue, {self._reports_in: episodes}))

    def drain(self) -> np.ndarray:
        """Take all episode reports out of the queue, `[N, 4]`; only the chief may call this."""
        return self._run(self._dequeue)

    def finish(self, reason: str) -> None:
        self._assign({"finished": FINISHED.index(reason)})

    def end_reason(self) -> str | None:
        return FINISHED[self._run(self._flags.finished)]

    def attached(self) -> np.ndarray:
        return self._run(self._flags.attached) != 0

    def saved_shapes(self) -> dict[str, tuple[int, ...]]:
        blank = {n: np.empty(v.shape.as_list(), np.int8) for n, v in self._saved.items()}
        return {name: value.shape for name, value in by_parameter(blank, self.layout).items()}

    def snapshot(self) -> Snapshot:
        """Read every variable that a checkpoint holds, while pushes go on.

        Each shard is read atomically, but pushes may come between two shards. So up to five reads
        are made, until one had no update during it; the one with the fewest is returned.
        """
        tries: list[Snapshot] = []
        while len(tries) < 5 and not (tries and tries[-1].updates_during == 0):
            before, on_ps, after, waiting = self._run(self._snapshot)
            values = by_parameter(on_ps, self.layout)
            tries.append(Snapshot(values, int(after - before), int(waiting)))
        return min(tries, key=lambda snapshot: snapshot.updates_during)

    def _build_reports(self) -> None:
        """Build the episode queue; full, it refuses reports; empty, it gives []; no call blocks."""
        self._reports_in = tf.compat.v1.placeholder(tf.float64, [None, EPISODE_FIELDS])
        with tf.device(FIRST_PS):
            queue = tf.queue.FIFOQueue(
                EPISODE_QUEUE_CAPACITY, [tf.float64], [[EPISODE_FIELDS]], shared_name="episodes"
            )
            has_room = EPISODE_QUEUE_CAPACITY - queue.size() >= tf.shape(self._reports_in)[0]
            put = tf.cond(has_room, lambda: queue.enqueue_many([self._reports_in]), tf.no_op)
            with tf.control_dependencies([put]):
                self._enqueue = tf.identity(has_room)
            self._dequeue = queue.dequeue_many(queue.size())

    def _build_saving(self) -> None:
        variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        unsaved = {v.op.name for v in (*self._flags.variables, self._exchange.advantage_moments)}
        before = self._exchange.num_updates.read_value()
        with tf.control_dependencies([before]):
            self._saved = {
                name: variable.read_value()
                for name, variable in variables.items()
                if name not in unsaved and not name.startswith(f"{GATHERED}/")
            }
        with tf.control_dependencies(list(self._saved.values())):
            after = self._exchange.num_updates.read_value()
        self._snapshot = (before, self._saved, after, self._exchange.samples_waiting)
        self._initializers = {name: v.initializer for name, v in variables.items()}
        exist = [tf.compat.v1.is_variable_initialized(v) for v in variables.values()]
        self._all_exist = tf.reduce_all(exist)
