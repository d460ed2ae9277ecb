"""The short way to a ps, and what tells that it is lost.

In the runtime's usual way this process's own master takes a call apart: it asks the ps to run its
part, is asked for the gradient, asks for the answer, and asks the ps to clean up. The ps's own
master does a call at once, for half of the CPU time where the vector is small, and in one round
trip; a large vector is copied more often there. But a call to a ps that is gone waits for another
in its place, until the session's timeout. So a call in the usual way, one that never returns, tells
at once. A call whose connection breaks is repeated, and refused by a ps that has had it already, so
that no gradient counts twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from a3c.errors import EXIT_RETRY, RetryableError
from a3c.layout import Layout

log = logging.getLogger(__name__)

SHORT_WAY_BYTES = 3_000_000  # of parameters on a ps: about where both ways cost both sides the same
PATIENCE_S = 0.3  # for a call to fail by itself
_POLL_S = 0.05

# What the ps says, by letting go of the connection or of its memory, when it is gone.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)


def takes_short_way(layout: Layout, dtype: str) -> bool:
    """Whether exchanges of this layout go straight to each ps's own master."""
    held: Counter[int] = Counter()
    for shard in layout.shards:
        held[shard.ps] += shard.size
    return max(held.values()) * np.dtype(dtype).itemsize <= SHORT_WAY_BYTES


class Lifeline:
    """Waits in a thread for the loss of a ps.

    Afterwards there are no more calls, and `on_stuck` is called if one is under way that doesn't
    end: its thread can't be woken.
    """

    def __init__(
        self, until_lost: Callable[[], None], on_stuck: Callable[[RetryableError], None]
    ) -> None:
        self._until_lost, self._on_stuck = until_lost, on_stuck
        self._lost: RetryableError | None = None
        self._calling_since: float | None = None
        self._is_cut = False
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def cut(self) -> None:
        """The ps may go from now on."""
        self._is_cut = True

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Around each call in the short way."""
        if self._lost:
            raise self._lost
        self._calling_since = time.monotonic()
        try:
            yield
        finally:
            self._calling_since = None

    def _watch(self) -> None:
        try:
            self._until_lost()
        except RetryableError as error:
            self._lost = error
        lost_at = time.monotonic()
        while self._lost and not self._is_cut:
            since = self._calling_since
            if since is not None and time.monotonic() > max(since, lost_at) + PATIENCE_S:
                self._on_stuck(self._lost)
                return
            time.sleep(_POLL_S)


@contextlib.contextmanager
def leave_if_stuck(timeout_s: float, reason: str) -> Iterator[None]:
    """End this process where the runtime would wait for its peer forever."""

    def leave() -> None:
        log.error("%s within %g s; leaving with %d", reason, timeout_s, EXIT_RETRY)
        logging.shutdown()
        os._exit(EXIT_RETRY)

    timer = threading.Timer(timeout_s, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def or_lost() -> Iterator[None]:
    """Turn the runtime's ways of saying that the ps is gone into one."""
    try:
        yield
    except LOST as error:
        reason = str(error.message).splitlines()[0][:200]
        raise RetryableError(f"the ps is lost ({type(error).__name__}: {reason})") from error
