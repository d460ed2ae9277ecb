"""The one call of an update: push a gradient, count its steps, pull what is new.

The parameters lie on the ps as shards (`a3c.layout`). Each ps gets its shards' part of a gradient
with a header of numbers, makes a step of the optimizer, and answers with its shards; the first ps
counts besides, and answers with the counters. A call goes to a ps's own master, which does it in
one round trip, and to all ps at once; no ps waits for another.

A call to a ps that is gone may hang: `a3c.lifeline` ends it. A call whose connection breaks is
repeated, and refused by a ps that has had it already, so that no gradient counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c import calls, optimizers, wire
from a3c.config import Config
from a3c.flags import FIRST_PS
from a3c.layout import Layout, Shard

_Values = list[np.ndarray]


class Push(NamedTuple):
    """What a worker pushes."""

    gradient: np.ndarray  # [P], as it travels: a multiple of `unit`
    unit: float
    learning_rate: float
    num_steps: int  # env steps to count
    moments: np.ndarray  # to add to the observation statistics


class Reply(NamedTuple):
    """What the ps answers."""

    parameters: np.ndarray  # [P], as they travel, read after this worker's own push
    statistics: np.ndarray
    global_step: int
    num_updates: int
    finished: bool


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
        self._wire_dtype = config.cluster.wire_dtype
        self._num_parameters = layout.num_parameters
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
        header = np.concatenate([[push.learning_rate, push.num_steps, push.unit], push.moments])
        fed = [
            [header, *(push.gradient[shard.start : shard.stop] for shard in part.shards)]
            for part in self._parts
        ]
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
        step, updates, finished = counters[:3].tolist()
        parameters = self._joined([first, *others])
        return Reply(parameters, counters[3:].view(np.float64), step, updates, bool(finished))

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
            size = 3 + self._shared.statistics.shape[0]
            header = tf.compat.v1.placeholder(tf.float64, [size], "header")
            gradients = [
                tf.compat.v1.placeholder(self._wire_dtype, [shard.size], f"gradient_{number}")
                for number, shard in enumerate(shards)
            ]
            steps = [
                self._build_step(shard, gradient, header)
                for shard, gradient in zip(shards, gradients, strict=True)
            ]
            pushed = [self._read(shard, [step]) for shard, step in zip(shards, steps, strict=True)]
            pulled = [self._read(shard, []) for shard in shards]
        if ps == 0:
            pushed.insert(0, self._counters(self._build_counts(header, steps)))
            pulled.insert(0, self._counters([]))
        return _Part(shards, [header, *gradients], pushed, pulled)

    def _build_step(self, shard: Shard, gradient: Any, header: Any) -> Any:
        """One step of the optimizer in a shard."""
        learning_rate, unit = tf.cast(header[0], tf.float32), tf.cast(header[2], tf.float32)
        if shard.apart:
            learning_rate *= self._learning.critic_learning_rate_scale
        unpacked = wire.unpack(gradient, unit, self._wire_dtype)
        variable = self._shared.parameters[shard.name]
        return optimizers.step(self._learning, learning_rate, unpacked, variable)

    def _build_counts(self, header: Any, steps: Sequence[Any]) -> list[Any]:
        shared = self._shared
        with tf.device(FIRST_PS), tf.control_dependencies(steps):
            return [
                shared.global_step.assign_add(tf.cast(header[1], tf.int64), read_value=False),
                shared.num_updates.assign_add(1, read_value=False),
                shared.statistics.assign_add(header[3:], read_value=False),
            ]

    def _read(self, shard: Shard, after: Sequence[Any]) -> Any:
        """The parameters of a shard as they travel."""
        with tf.control_dependencies(after):
            value = self._shared.parameters[shard.name].read_value()
            return wire.narrow(value, self._wire_dtype)

    def _counters(self, after: Sequence[Any]) -> Any:
        """The counters and, bit by bit, the observation statistics: one int64 vector."""
        shared = self._shared
        with tf.device(FIRST_PS), tf.control_dependencies(after):
            counters = (shared.global_step, shared.num_updates, shared.finished)
            numbers = tf.stack([variable.read_value() for variable in counters])
            statistics = tf.bitcast(shared.statistics.read_value(), tf.int64)
            return tf.concat([numbers, statistics], 0)
