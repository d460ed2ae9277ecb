"""One update in one call: push a gradient, count its steps, pull the new parameters.

A ps adds up gradients, weighted by their samples, until the number of samples is nearest to
`samples_per_step`. The push that completes them makes one step with their clipped mean; no push
waits. With `samples_per_step` 0 every push makes its own step.

Each ps gets its shards' part of a gradient (`a3c.server.layout`) and a header of numbers, and
replies with its shards. The first ps also holds the counters. A worker calls all ps at once, each
through that ps's own master, which takes one round trip. No ps waits for another.

With `wire_dtype` float16, vectors travel in half precision, which holds magnitudes from 6e-8 to
65504. So a gradient is divided by a unit that makes its largest number 1024; the header holds the
unit.

A call to a lost ps may hang; `Store` then ends the process. After a broken connection gRPC
repeats the call, and a ps that already received it refuses it: no gradient counts twice.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.config import Config
from a3c.server import optimizers, sessions
from a3c.server.layout import Layout, Shard
from a3c.server.optimizers import make_variable

END_REASONS = ("solved", "max_env_steps", "max_wall_time", "patience")  # why a run is over
PS_LEAVES = "ps leaves"  # a ps was asked to end; the run may go on when it is back
FINISHED = (None, *END_REASONS, PS_LEAVES)  # what the numbers of the flag `finished` mean
GATHERED = "gathered"  # name prefix of the variables that hold gathered gradients; never saved

# Header entries before the sketches and the statistics: learning rate, env steps, unit, samples,
# advantage update (four), is_of_value.
_NUMBERS = 9
_SKETCH = 256  # numbers
_SMALLEST = 1e-30
_Values = list[np.ndarray]


class Push(NamedTuple):
    gradient: np.ndarray  # [P], finite
    learning_rate: float
    num_samples: int  # the gradient is their mean
    num_steps: int  # env steps to count
    statistics: np.ndarray  # of observations, then of returns, to add to those on the ps
    advantage_update: np.ndarray  # [4]: a factor for the advantages' moments, then what to add
    is_of_value: bool = False  # the gradient of a value loss that has its own optimizer


class Reply(NamedTuple):
    parameters: np.ndarray  # [P], float32, read after this worker's own push
    statistics: np.ndarray  # of observations, then of returns
    advantage_moments: np.ndarray  # [3], running over the samples of all workers
    global_step: int
    num_updates: int
    end_reason: str | None  # why the run is over, or `PS_LEAVES`; None while it goes on
    stepped: bool  # this worker's own push made, or completed, an optimizer step


class _Part(NamedTuple):
    shards: list[Shard]
    inputs: list[Any]  # the header, then one gradient per shard
    pushed: list[Any]  # after a push: the counters (first ps only), then each shard's parameters
    pulled: list[Any]  # the same, without a push


class Exchange:
    """Adds variables and operations to the current graph; call `connect` before use."""

    def __init__(
        self, layout: Layout, config: Config, num_ps: int, statistics_size: int, finished: Any
    ) -> None:
        """`finished` is a variable that every reply reports: an index in `FINISHED`."""
        self._parameters = {
            s.name: make_variable(s.name, (s.size,), tf.float32) for s in layout.shards
        }
        self.global_step = make_variable("global_step", (), tf.int64)
        self.num_updates = make_variable("num_updates", (), tf.int64)
        self._statistics = make_variable("observation_statistics", (statistics_size,), tf.float64)
        self.advantage_moments = make_variable("advantage_moments", (3,), tf.float64)
        self._finished = finished
        self._config, self._limits = config, config.learning.gradient_norms
        self._wire_dtype = config.cluster.wire_dtype
        self._num_parameters = layout.num_parameters
        ends = [layout.num_parameters - sum(s.size for s in layout.shards if s.separate)]
        self._cuts = ends[: len(self._limits) - 1]  # where the second limit's weights begin
        sizes = np.diff([0, *self._cuts, layout.num_parameters])
        self._signs: list[np.ndarray] = []  # for sketches, if needed; the same in all workers
        if num_ps > 1 and config.samples_per_step > 0 and any(self._limits):
            draw, signs = np.random.default_rng(0), np.array([-1, 1], np.float32)
            self._signs = [draw.choice(signs, (-(-size // _SKETCH), _SKETCH)) for size in sizes]
        self._num_sketched = _SKETCH * len(self._signs)
        self.samples_waiting: Any = tf.constant(0.0, tf.float64)  # gathered for the next step
        self._parts = [self._build_part(ps, layout) for ps in range(num_ps)]

    def connect(self, masters: Sequence[tf.compat.v1.Session]) -> None:
        """Prepare the calls, with one session per ps; waits for ps that have not started yet."""
        pairs = list(zip(masters, self._parts, strict=True))
        self._push = [sessions.prepare(master, part.inputs, part.pushed) for master, part in pairs]
        self._pull = [sessions.prepare(master, [], part.pulled) for master, part in pairs]
        self._pool = ThreadPoolExecutor(max(1, len(pairs) - 1), "exchange")

    def push(self, push: Push) -> Reply:
        packed, unit = push.gradient, 1.0
        if self._wire_dtype == "float16":
            largest = float(np.abs(packed).max())  # unlike a norm, it can't underflow
            unit = max(largest, _SMALLEST) / 1024
            packed = (packed / np.float32(unit)).astype(np.float16)
        numbers = [push.learning_rate, push.num_steps, unit, push.num_samples]
        numbers += [*push.advantage_update, push.is_of_value]
        header = np.concatenate([numbers, *self._sketches(push.gradient), push.statistics])
        fed = [[header, *(packed[s.start : s.stop] for s in p.shards)] for p in self._parts]
        return self._reply(self._call(self._push, fed))

    def pull(self) -> Reply:
        return self._reply(self._call(self._pull, [[]] * len(self._parts)))

    def _call(
        self, prepared: Sequence[Callable[..., _Values]], fed: Sequence[_Values]
    ) -> list[_Values]:
        """Call all ps at once, the first one in this thread."""
        waiting = [
            self._pool.submit(call, *values)
            for call, values in zip(prepared[1:], fed[1:], strict=True)
        ]
        try:
            first = prepared[0](*fed[0])
        finally:
            wait(waiting)  # otherwise an unwatched call could go on after this returns
        return [first, *(each.result() for each in waiting)]

    def _reply(self, answers: Sequence[_Values]) -> Reply:
        (counters, *first), *others = answers
        step, updates, finished, stepped = counters[:4].tolist()
        moments, parameters = counters[4:].view(np.float64), first[0]
        if len(parameters) < self._num_parameters:  # there are several shards
            parameters = np.empty(self._num_parameters, np.float32)
            for part, vectors in zip(self._parts, [first, *others], strict=True):
                for shard, vector in zip(part.shards, vectors, strict=True):
                    parameters[shard.start : shard.stop] = vector
        parameters = np.asarray(parameters, np.float32)
        reason = FINISHED[finished]
        return Reply(parameters, moments[3:], moments[:3], step, updates, reason, bool(stepped))

    def _sketches(self, gradient: np.ndarray) -> Iterator[np.ndarray]:
        """Short random projections of the whole gradient, scaled to its norms.

        A ps clips by the norm of the whole mean gradient but holds only a part of it. The mean of
        the projections (Charikar et al. 2002) has nearly the same norm: within 10 % in some 98 of
        100 steps, and exactly if all gradients have one direction. Every ps gets the same sketches,
        one for each limit.
        """
        for part, signs in zip(np.split(gradient, self._cuts), self._signs, strict=False):
            padded = np.zeros(signs.shape, np.float32)
            padded.reshape(-1)[: len(part)] = part
            sketch = np.einsum("ij,ij->j", padded, signs).astype(np.float64)
            norm = float(np.linalg.norm(part.astype(np.float64)))
            yield sketch * (norm / max(float(np.linalg.norm(sketch)), _SMALLEST))

    def _build_part(self, ps: int, layout: Layout) -> _Part:
        shards = [shard for shard in layout.shards if shard.ps == ps]
        with tf.name_scope(f"exchange_{ps}"), tf.device(f"/job:ps/task:{ps}"):
            size = _NUMBERS + self._num_sketched + self._statistics.shape[0]
            header = tf.compat.v1.placeholder(tf.float64, [size], "header")
            fed = [tf.compat.v1.placeholder(self._wire_dtype, [s.size], "gradient") for s in shards]
            gradients = dict(zip(shards, fed, strict=True))
            if self._wire_dtype == "float16":
                unit = tf.cast(header[2], tf.float32)
                gradients = {s: tf.cast(half, tf.float32) * unit for s, half in gradients.items()}
            if self._config.samples_per_step:
                stepped, *counters = self._build_gathered(ps, gradients, header)
            else:
                steps = [self._step(shard, value, header) for shard, value in gradients.items()]
                with tf.control_dependencies(steps):
                    stepped = tf.constant(1, tf.int64)
                counters = [self._count(header, stepped)] if ps == 0 else []
            held_here = [self._parameters[shard.name] for shard in shards]
            counted = [self._counters(tf.constant(0, tf.int64))] if ps == 0 else []
            with tf.control_dependencies(counted):  # the counts must not be newer than the weights
                pulled = [tf.cast(v.read_value(), self._wire_dtype) for v in held_here]
            with tf.control_dependencies([stepped, *counters]):
                read = [tf.cast(v.read_value(), self._wire_dtype) for v in held_here]
        return _Part(shards, [header, *fed], [*counters, *read], [*counted, *pulled])

    def _build_gathered(self, ps: int, gradients: Mapping[Shard, Any], header: Any) -> list[Any]:
        """Add this push to the gathered gradients, and make a step if that is enough.

        Returns 1 if there was a step, else 0, and on the first ps the counters after that. A
        critical section covers it all; otherwise two pushes could complete the same step.
        """
        sums = {s: make_variable(f"{GATHERED}/{s.name}", [s.size], tf.float32) for s in gradients}
        # The totals are the samples, and all sketches times the samples.
        totals = make_variable(f"{GATHERED}/totals_{ps}", [1 + self._num_sketched], tf.float64)
        if ps == 0:
            self.samples_waiting = totals.read_value()[0]

        def gather() -> Any:
            samples = header[3]
            add, alpha = tf.raw_ops.ResourceApplyGradientDescent, -tf.cast(samples, tf.float32)
            added = [add(var=sums[s].handle, alpha=alpha, delta=g) for s, g in gradients.items()]
            sketches = header[_NUMBERS : _NUMBERS + self._num_sketched]
            more = samples * tf.concat([[1.0], sketches], 0)
            added.append(totals.assign_add(more, read_value=False))
            with tf.control_dependencies(added):
                gathered = totals.read_value()
            # Step at the count nearest to the goal: a rollout with a step that only resets holds
            # fewer samples, and the optimizer step would otherwise wait for one more push.
            stepped = tf.cond(
                gathered[0] + samples / 2 >= self._config.samples_per_step,
                lambda: self._step_of_mean(sums, totals, gathered, header),
                lambda: tf.constant(0, tf.int64),
            )
            return [stepped, self._count(header, stepped)] if ps == 0 else [stepped]

        section = tf.CriticalSection(shared_name=f"gathering_{ps}")
        return section.execute(gather, exclusive_resource_access=False)

    def _step_of_mean(
        self, sums: Mapping[Shard, Any], totals: Any, gathered: Any, header: Any
    ) -> Any:
        """Make one step with the clipped mean of the gathered gradients; returns 1 after it."""
        count, steps = tf.cast(gathered[0], tf.float32), []
        for group, limit in enumerate(self._limits):
            is_for_all = len(self._limits) == 1
            members = {s: v for s, v in sums.items() if is_for_all or s.separate == bool(group)}
            if self._num_sketched:
                start = 1 + _SKETCH * group
                sketch = gathered[start : start + _SKETCH] / gathered[0]
                norm = tf.cast(tf.norm(sketch), tf.float32)
            else:
                # The mean's norm: squares of the sum may overflow although those of no push do.
                squares = [2 * tf.nn.l2_loss(v.read_value() / count) for v in members.values()]
                norm = tf.sqrt(sum(squares, 0.0))
            scale = optimizers.clip_factor(norm, limit)
            steps += [
                self._step(shard, total.read_value() * (scale / count), header)
                for shard, total in members.items()
            ]
        with tf.control_dependencies(steps):
            cleared = [
                v.assign(tf.zeros_like(v), read_value=False) for v in (*sums.values(), totals)
            ]
        with tf.control_dependencies(cleared):
            return tf.constant(1, tf.int64)

    def _step(self, shard: Shard, gradient: Any, header: Any) -> Any:
        learning, learning_rate = self._config.learning, tf.cast(header[0], tf.float32)
        if shard.separate:
            learning_rate *= learning.critic_learning_rate_scale
        variable = self._parameters[shard.name]
        step = functools.partial(optimizers.step, learning, learning_rate, gradient, variable)
        if learning.value_optimizer == "shared":
            return step()
        return tf.cond(header[8] > 0, lambda: step("Value"), step)

    def _count(self, header: Any, stepped: Any) -> Any:
        """Count a push, and the optimizer step if it made one; returns the new counters."""
        with tf.control_dependencies([stepped]):
            moments = self.advantage_moments.read_value() * header[4] + header[5:8]
            statistics = header[_NUMBERS + self._num_sketched :]
            counts = [
                self.advantage_moments.assign(moments, read_value=False),
                self.global_step.assign_add(tf.cast(header[1], tf.int64), read_value=False),
                self.num_updates.assign_add(stepped, read_value=False),
                self._statistics.assign_add(statistics, read_value=False),
            ]
        with tf.control_dependencies(counts):
            return self._counters(stepped)

    def _counters(self, stepped: Any) -> Any:
        """One int64 vector: the counters, then the bits of the advantage moments and statistics."""
        counters = (self.global_step, self.num_updates, self._finished)
        numbers = tf.stack([*(variable.read_value() for variable in counters), stepped])
        moments = [self.advantage_moments.read_value(), self._statistics.read_value()]
        return tf.concat([numbers, tf.bitcast(tf.concat(moments, 0), tf.int64)], 0)
