"""One lane a ps: its part of an exchange, which needs nothing of any other ps; and who calls them.

In the usual way one call of this process's own master asks every ps for its part. In the short way
(`a3c.lifeline`) each part is a call of its own to that ps's master, all of them at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c import calls
from a3c.headers import Header
from a3c.layout import Shard

Values = list[np.ndarray]


class Ends(NamedTuple):
    """What is fed into a graph and fetched from it for one ps."""

    inputs: list[Any]
    outputs: list[Any]


class Lane(NamedTuple):
    """One ps's part of an exchange, and of a pull."""

    shards: list[Shard]
    header: Header  # on the first ps it comes back too
    exchange: Ends
    pull: Ends

    def fed(self, header: np.ndarray, gradient: np.ndarray) -> Values:
        """Its part of what an exchange feeds."""
        return self.header.fed(header, [gradient[s.start : s.stop] for s in self.shards])


# From what is fed to each ps to what each of them answers.
Call = Callable[[Sequence[Values]], list[Values]]


def merge(lanes: Sequence[Lane], answers: Sequence[Values]) -> tuple[np.ndarray, np.ndarray]:
    """The header and the whole vector from what each ps answered."""
    header, vectors = lanes[0].header.fetched(answers[0])
    parts = [vectors, *answers[1:]]
    if len(lanes) == len(vectors) == 1:
        return header, vectors[0]
    flat = np.empty(sum(part.size for part in itertools.chain(*parts)), vectors[0].dtype)
    for lane, held in zip(lanes, parts, strict=True):
        for shard, part in zip(lane.shards, held, strict=True):
            flat[shard.start : shard.stop] = part
    return header, flat


class Together:
    """One call for all ps."""

    def __init__(self, session: tf.compat.v1.Session) -> None:
        self._session = session

    def prepare(self, ends: Sequence[Ends]) -> Call:
        """A function that feeds all lanes and fetches from all."""
        inputs, outputs = (list(itertools.chain(*each)) for each in zip(*ends, strict=True))
        run = calls.prepare(self._session, inputs, outputs)

        def call(fed: Sequence[Values]) -> list[Values]:
            fetched = iter(run(*itertools.chain(*fed)))
            return [list(itertools.islice(fetched, len(end.outputs))) for end in ends]

        return call


class Abreast:
    """A call a ps, each in a session of its own, all at a time."""

    def __init__(self, sessions: Sequence[tf.compat.v1.Session]) -> None:
        self._sessions = sessions
        self._pool = ThreadPoolExecutor(max(1, len(sessions) - 1), "lane")

    def prepare(self, ends: Sequence[Ends]) -> Call:
        """A function that feeds each lane and fetches from it."""
        pairs = zip(self._sessions, ends, strict=True)
        first, *others = [calls.prepare(session, *end) for session, end in pairs]

        def call(fed: Sequence[Values]) -> list[Values]:
            waiting = [
                self._pool.submit(run, *values) for run, values in zip(others, fed[1:], strict=True)
            ]
            try:
                answer = first(*fed[0])
            finally:
                wait(waiting)  # or a call would go on that nobody watches any more
            return [answer, *(each.result() for each in waiting)]

        return call
