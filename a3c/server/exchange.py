"""The one call of an update: push a gradient, count its steps, pull what is new.

The parameters lie on the ps as shards (`a3c.server.layout`). Each ps gets its shards' part of a
gradient with a header of numbers, makes a step of the optimizer, and answers with its shards; the
first ps counts besides, and answers with the counters. A call goes to a ps's own master, which does
it in one round trip, and to all ps at once; no ps waits for another.

Gradients are gathered first: a ps adds them up, weighted by their samples, until these come nearest
to `samples_per_step`, and makes one step of their mean, clipped. The push that brings the last of
them makes the step; none waits. With 0 samples a step every push makes a step of its own.

A call to a ps that is gone may hang: `a3c.server.ps_loss_watch` ends it. A call whose connection
breaks is repeated, and refused by a ps that has had it already: no gradient counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.config import Config
from a3c.server import calls, optimizers, precision
from a3c.server.layout import Layout, Shard

GATHERED = "gathered"  # what the names of variables for that begin with

_NUMBERS = 6  # in a header, before the moments of the observations
_Values = list[np.ndarray]


class Push(NamedTuple):
    """What a worker pushes."""

    gradient: np.ndarray  # [P], as it travels: a multiple of `unit`
    unit: float
    learning_rate: float
    num_samples: int  # that the gradient is the mean of
    num_steps: int  # env steps to count
    moments: np.ndarray  # to add to the observation statistics


class Reply(NamedTuple):
    """What the ps answers."""

    parameters: np.ndarray  # [P], as they travel, read after this worker's own push
    statistics: np.ndarray
    global_step: int
    num_updates: int
    finished: bool
    stepped: bool  # this worker's own push made, or completed, a step of the optimizer


class Shared(NamedTuple):
    """The variables on the ps that an exchange touches."""

    parameters: Mapping[str, Any]  # by the name of their shard
    global_step: Any
    num_updates: Any
    statistics: Any
    finished: Any


class _Part(NamedTuple):
    """One ps's part of the graph."""

    shards: list[Shard]
    inputs: list[Any]  # the header, and a gradient a shard
    pushed: list[Any]  # the counters, on the first ps; the parameters of each shard
    pulled: list[Any]  # the same without a push


class Exchange:
    """Adds its operations to the current graph; works once it is connected."""

    def __init__(self, shared: Shared, layout: Layout, config: Config, num_ps: int) -> None:
        self._shared = shared
        self._learning = config.learning
        self._samples_per_step = config.samples_per_step
        self._wire_dtype = config.cluster.wire_dtype
        self._num_parameters = layout.num_parameters
        self.samples_waiting: Any = tf.constant(0.0, tf.float64)  # for the next step
        self._parts = [
            self._build_part(ps, [shard for shard in layout.shards if shard.ps == ps])
            for ps in range(num_ps)
        ]

    def connect(self, sessions: Sequence[tf.compat.v1.Session]) -> None:
        """Prepare the calls, a session a ps; waits for ps that are not there yet."""
        pairs = list(zip(sessions, self._parts, strict=True))
        self._push = [calls.prepare(session, part.inputs, part.pushed) for session, part in pairs]
        self._pull = [calls.prepare(session, [], part.pulled) for session, part in pairs]
        self._pool = ThreadPoolExecutor(max(1, len(pairs) - 1), "exchange")

    def push(self, push: Push) -> Reply:
        """Push, and pull what is there after that."""
        fed = [[push.gradient[s.start : s.stop] for s in part.shards] for part in self._parts]
        numbers = [push.learning_rate, push.num_steps, push.unit, push.num_samples]
        for gradients, squares in zip(fed, self._squares(fed, push.unit), strict=True):
            gradients.insert(0, np.concatenate([numbers, squares, push.moments]))
        return self._reply(self._call(self._push, fed))

    def pull(self) -> Reply:
        """The newest of everything."""
        return self._reply(self._call(self._pull, [[]] * len(self._parts)))

    def _call(
        self, prepared: Sequence[Callable[..., _Values]], fed: Sequence[_Values]
    ) -> list[_Values]:
        """Call all ps at once: the first one in this thread."""
        waiting = [
            self._pool.submit(call, *values)
            for call, values in zip(prepared[1:], fed[1:], strict=True)
        ]
        try:
            first = prepared[0](*fed[0])
        finally:
            wait(waiting)  # or a call would go on that nobody watches any more
        return [first, *(each.result() for each in waiting)]

    def _reply(self, answers: Sequence[_Values]) -> Reply:
        (counters, *first), *others = answers
        step, updates, finished, stepped = counters[:4].tolist()
        statistics, parameters = counters[4:].view(np.float64), self._joined([first, *others])
        return Reply(parameters, statistics, step, updates, bool(finished), bool(stepped))

    def _squares(self, fed: Sequence[_Values], unit: float) -> list[tuple[float, float]]:
        """The squared norms of the whole gradient and of each ps's part of it.

        A ps clips by the norm of the whole mean, of which it has a part only: with several ps it
        takes the rest to be as much longer as in the gradients that it gathered.
        """
        if len(fed) == 1:
            return [(1.0, 1.0)]
        squares = [
            sum(float(np.vdot(v, v)) for v in (part.astype(np.float32) * unit for part in parts))
            for parts in fed
        ]
        return [(sum(squares), square) for square in squares]

    def _joined(self, held: Sequence[_Values]) -> np.ndarray:
        """The whole vector from what each ps holds."""
        if len(held) == len(held[0]) == 1:
            return held[0][0]
        flat = np.empty(self._num_parameters, held[0][0].dtype)
        for part, vectors in zip(self._parts, held, strict=True):
            for shard, vector in zip(part.shards, vectors, strict=True):
                flat[shard.start : shard.stop] = vector
        return flat

    # --- the graph ------------------------------------------------------------------------------

    def _build_part(self, ps: int, shards: list[Shard]) -> _Part:
        with tf.name_scope(f"exchange_{ps}"), tf.device(f"/job:ps/task:{ps}"):
            size = _NUMBERS + self._shared.statistics.shape[0]
            header = tf.compat.v1.placeholder(tf.float64, [size], "header")
            gradients = [
                tf.compat.v1.placeholder(self._wire_dtype, [shard.size], f"gradient_{number}")
                for number, shard in enumerate(shards)
            ]
            build = self._build_gathered if self._samples_per_step else self._build_steps
            stepped, counters = build(ps, shards, gradients, header)
            pushed = [self._read(shard, [stepped]) for shard in shards]
            pulled = [self._read(shard, []) for shard in shards]
            if ps == 0:
                pushed.insert(0, counters)
                pulled.insert(0, self._counters(tf.constant(0, tf.int64)))
        return _Part(shards, [header, *gradients], pushed, pulled)

    def _build_steps(
        self, ps: int, shards: Sequence[Shard], gradients: Sequence[Any], header: Any
    ) -> tuple[Any, Any]:
        """Make a step of this push; 1 after it, and the counters of the first ps after it."""
        steps = [
            self._step(shard, self._unpacked(gradient, header), header)
            for shard, gradient in zip(shards, gradients, strict=True)
        ]
        with tf.control_dependencies(steps):
            stepped = tf.constant(1, tf.int64)
        return stepped, self._count(header, stepped) if ps == 0 else None

    def _build_gathered(
        self, ps: int, shards: Sequence[Shard], gradients: Sequence[Any], header: Any
    ) -> tuple[Any, Any]:
        """Add this push to what was gathered, and make a step where that is enough.

        All in a critical section, or two pushes could complete one step. Whether there was a step,
        and the counters of the first ps after it.
        """
        sums = {s.name: _gathered(f"{s.name}", [s.size], tf.float32) for s in shards}
        totals = _gathered(f"totals_{ps}", [3], tf.float64)  # samples; squares, times samples
        if ps == 0:
            self.samples_waiting = totals.read_value()[0]
        counters: list[Any] = []

        def gather() -> Any:
            samples = header[3]
            added = [
                tf.raw_ops.ResourceApplyGradientDescent(  # adds in place
                    var=sums[shard.name].handle,
                    alpha=-tf.cast(samples, tf.float32),
                    delta=self._unpacked(gradient, header),
                )
                for shard, gradient in zip(shards, gradients, strict=True)
            ]
            more = tf.stack([samples, samples * header[4], samples * header[5]])
            added.append(totals.assign_add(more, read_value=False))
            with tf.control_dependencies(added):
                gathered = totals.read_value()
            # Nearest, as a rollout in which a game ended holds fewer samples: it would wait else.
            stepped = tf.cond(
                gathered[0] + samples / 2 >= self._samples_per_step,
                lambda: self._step_of_mean(sums, totals, gathered, shards, header),
                lambda: tf.constant(0, tf.int64),
            )
            if ps == 0:
                counters.append(self._count(header, stepped))
            return [stepped, *counters]

        section = tf.CriticalSection(shared_name=f"gathering_{ps}")
        stepped, *counters = section.execute(gather, exclusive_resource_access=False)
        return stepped, counters[0] if counters else None

    def _step_of_mean(
        self,
        sums: Mapping[str, Any],
        totals: Any,
        gathered: Any,
        shards: Sequence[Shard],
        header: Any,
    ) -> Any:
        """One step of the mean of all that was gathered, clipped; 1 after it."""
        numbers = tf.cast(gathered, tf.float32)
        squares = tf.add_n([2 * tf.nn.l2_loss(sums[shard.name].read_value()) for shard in shards])
        whole = tf.math.divide_no_nan(squares * numbers[1], numbers[2])
        scale = optimizers.clipped(tf.sqrt(whole) / numbers[0], self._learning.max_gradient_norm)
        steps = [
            self._step(shard, sums[shard.name].read_value() * (scale / numbers[0]), header)
            for shard in shards
        ]
        with tf.control_dependencies(steps):
            cleared = [v.assign(tf.zeros_like(v), read_value=False) for v in sums.values()]
            cleared.append(totals.assign(tf.zeros_like(totals), read_value=False))
        with tf.control_dependencies(cleared):
            return tf.constant(1, tf.int64)

    def _unpacked(self, gradient: Any, header: Any) -> Any:
        return precision.unpack(gradient, tf.cast(header[2], tf.float32), self._wire_dtype)

    def _step(self, shard: Shard, gradient: Any, header: Any) -> Any:
        """One step of the optimizer in a shard."""
        learning_rate = tf.cast(header[0], tf.float32)
        if shard.apart:
            learning_rate *= self._learning.critic_learning_rate_scale
        variable = self._shared.parameters[shard.name]
        return optimizers.step(self._learning, learning_rate, gradient, variable)

    def _count(self, header: Any, stepped: Any) -> Any:
        """Count a push, and the step that it made; the counters after that."""
        shared = self._shared
        with tf.control_dependencies([stepped]):
            counts = [
                shared.global_step.assign_add(tf.cast(header[1], tf.int64), read_value=False),
                shared.num_updates.assign_add(stepped, read_value=False),
                shared.statistics.assign_add(header[_NUMBERS:], read_value=False),
            ]
        with tf.control_dependencies(counts):
            return self._counters(stepped)

    def _read(self, shard: Shard, after: Sequence[Any]) -> Any:
        """The parameters of a shard as they travel."""
        with tf.control_dependencies(after):
            value = self._shared.parameters[shard.name].read_value()
            return precision.narrow(value, self._wire_dtype)

    def _counters(self, stepped: Any) -> Any:
        """The counters and, bit by bit, the observation statistics: one int64 vector."""
        shared = self._shared
        counters = (shared.global_step, shared.num_updates, shared.finished)
        numbers = tf.stack([*(variable.read_value() for variable in counters), stepped])
        statistics = tf.bitcast(shared.statistics.read_value(), tf.int64)
        return tf.concat([numbers, statistics], 0)


def _gathered(name: str, shape: Sequence[int], dtype: Any) -> Any:
    """A variable for what is gathered; `Store` saves none of these."""
    return tf.compat.v1.get_variable(
        f"{GATHERED}/{name}",
        shape=shape,
        dtype=dtype,
        initializer=tf.compat.v1.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )
