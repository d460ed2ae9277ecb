"""A cluster as a closed network of queues, simulated event by event.

A worker plays for a while, sends its gradient to every ps through the ps's link, waits in the queue
for the ps's core, and gets the parameters back through the link.
"""

import heapq
import random
import statistics
from typing import NamedTuple

UPDATES = 4000  # the first quarter isn't counted
JITTER = 0.15  # standard deviation of the time between updates, relative to its mean
SATURATED = 0.9


class Costs(NamedTuple):
    """The cost of one update."""

    play_ms: float  # of a worker: K×T env steps and the gradient
    worker_ms: float  # of a worker's core, to send and to receive
    ps_ms: float  # of a ps's core, with one ps
    ps_fixed_ms: float  # the part that doesn't shrink with more ps
    wire_bytes: float  # in each direction, over all ps


class Shape(NamedTuple):
    """A cluster; each worker and each ps has a core, and each ps a link."""

    workers: int
    ps: int
    link_mbit_s: float
    one_core: bool = False  # all workers send and receive on one core, as in checks here


class Outcome(NamedTuple):
    """The result of a simulation."""

    updates_per_s: float
    staleness: float  # mean updates between a gradient's weights and its push
    ps_load: float  # share of the time that a ps's core is busy
    link_load: float  # share of the time that the busier direction of a ps's link is busy

    @property
    def limit(self) -> str:
        """The bottleneck of throughput."""
        if max(self.ps_load, self.link_load) < SATURATED:
            return "workers"
        return "ps" if self.ps_load > self.link_load else "link"


class _Queue:
    """A queue with one server, in order of arrival."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._busy_s = 0.0

    def serve(self, at: float, seconds: float) -> float:
        """When an arrival at time `at` has been served."""
        self._free_at = max(self._free_at, at) + seconds
        self._busy_s += seconds
        return self._free_at

    def load(self, until: float) -> float:
        """The busy share of the time up to `until`, which lies after all arrivals."""
        return (self._busy_s - max(0.0, self._free_at - until)) / until


class _Ps:
    """A ps: its core, and both directions of its link."""

    def __init__(self) -> None:
        self.up, self.core, self.down = _Queue(), _Queue(), _Queue()


class _Event(NamedTuple):
    at: float
    worker: int
    stage: int  # a gradient is computed, is sent off, has arrived, or is applied
    ps: int


class Simulation:
    """One cluster; each stage of an update is an event, so queues see arrivals in order."""

    def __init__(self, shape: Shape, costs: Costs, seed: int = 1) -> None:
        self._shape, self._costs = shape, costs
        self._rng = random.Random(seed)  # noqa: S311
        self._ps = [_Ps() for _ in range(shape.ps)]
        self._shared = _Queue()
        self._wire_s = costs.wire_bytes / shape.ps * 8 / (shape.link_mbit_s * 1e6)
        divided_ms = (costs.ps_ms - costs.ps_fixed_ms) / shape.ps
        self._core_s = (costs.ps_fixed_ms + divided_ms) / 1000
        self._events: list[_Event] = []
        self._back: list[list[float]] = [[] for _ in range(shape.workers)]
        self._known = [0] * shape.workers
        self._ends: list[float] = []
        self._stale: list[int] = []

    def run(self) -> Outcome:
        """Simulate `UPDATES` updates."""
        for worker in range(self._shape.workers):
            self._play(worker, self._rng.random() * self._costs.play_ms / 1000)
        while len(self._ends) < UPDATES:
            self._take(heapq.heappop(self._events))
        kept, ends = UPDATES // 4, sorted(self._ends)
        rate = (UPDATES - kept - 1) / (ends[-1] - ends[kept])
        ps_load = max(one.core.load(ends[-1]) for one in self._ps)
        link_load = max(line.load(ends[-1]) for one in self._ps for line in (one.up, one.down))
        return Outcome(rate, statistics.mean(self._stale[kept:]), ps_load, link_load)

    def _play(self, worker: int, at: float) -> None:
        mean = self._costs.play_ms / 1000
        at += max(0.1 * mean, self._rng.gauss(mean, JITTER * mean))
        heapq.heappush(self._events, _Event(at, worker, 0, 0))

    def _take(self, event: _Event) -> None:
        if event.stage == 0:
            own_s = self._costs.worker_ms / 1000
            alone = event.at + own_s
            sent = self._shared.serve(event.at, own_s) if self._shape.one_core else alone
            heapq.heappush(self._events, event._replace(at=sent, stage=1))
        elif event.stage == 1:
            for i, one in enumerate(self._ps):
                arrival = one.up.serve(event.at, self._wire_s)
                heapq.heappush(self._events, _Event(arrival, event.worker, 2, i))
        elif event.stage == 2:
            done = self._ps[event.ps].core.serve(event.at, self._core_s)
            heapq.heappush(self._events, event._replace(at=done, stage=3))
        else:
            self._answer(event)

    def _answer(self, event: _Event) -> None:
        back = self._back[event.worker]
        back.append(self._ps[event.ps].down.serve(event.at, self._wire_s))
        if len(back) < self._shape.ps:
            return
        self._stale.append(len(self._ends) - self._known[event.worker])
        self._ends.append(max(back))
        self._known[event.worker] = len(self._ends)
        self._play(event.worker, max(back))
        back.clear()
