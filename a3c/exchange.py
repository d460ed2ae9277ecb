"""How a worker's updates get to the ps: while it waits, or while it plays on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from a3c.store import Reply, Store


class Answer(NamedTuple):
    """What the ps says to a push."""

    reply: Reply
    staleness: int  # updates that it did not know of, between its weights and itself


class Exchange:
    """Pushes, and gives the answers of the ps as soon as they are there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def push(self, known: Reply, *update: Any) -> Answer | None:
        """Push what `Store.exchange` takes; the newest answer, if there is a new one.

        `known` is what the worker's weights are from.
        """
        reply = self._store.exchange(*update)
        return Answer(reply, reply.num_updates - known.num_updates - 1)

    def settle(self) -> Answer | None:
        """Wait until nothing is on its way any more; the answer to it, if something was."""
        return None


class OverlappedExchange(Exchange):
    """Pushes while the worker goes on, with weights that are one update of its own older.

    One push is on its way at a time: the next one waits for it, and gives its answer.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._pool = ThreadPoolExecutor(1, "exchange")
        self._on_its_way: Future[Answer | None] | None = None

    def push(self, known: Reply, *update: Any) -> Answer | None:
        """Push in the background; the answer to the push before, if there was one."""
        answer = self.settle()
        self._on_its_way = self._pool.submit(super().push, known, *update)
        return answer

    def settle(self) -> Answer | None:
        """Wait for the answer to what was pushed last, if it is not known yet."""
        waiting, self._on_its_way = self._on_its_way, None
        return waiting.result() if waiting else None


def make(store: Store, *, overlap: bool) -> Exchange:
    """The way that is asked for."""
    return OverlappedExchange(store) if overlap else Exchange(store)
