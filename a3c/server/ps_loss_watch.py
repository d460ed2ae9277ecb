"""Detect a lost ps, and end calls that hang because of it.

A call to the master of a lost ps waits for a new ps at that address, until the session's time-out.
So this process also makes a call through its own master that does not return while all ps are
alive. That call fails at once when a ps is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from a3c.errors import EXIT_RETRY, RetryableError

log = logging.getLogger(__name__)

PATIENCE_S = 0.3  # how long a call may take to fail by itself after the loss
_POLL_S = 0.05

# TensorFlow's errors for a ps that closed its connection, or that lost its memory in a restart.
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


class PsLossWatch:
    """Watches for the loss of a ps in its own thread; after a loss, new calls raise.

    If a call is under way and doesn't end, `on_stuck` is called: its thread can't be interrupted.
    """

    def __init__(
        self, until_lost: Callable[[], None], on_stuck: Callable[[RetryableError], None]
    ) -> None:
        self._until_lost, self._on_stuck = until_lost, on_stuck
        self._lost: RetryableError | None = None
        self._calling_since: float | None = None
        self._is_over = False
        threading.Thread(target=self._watch, name="ps-loss-watch", daemon=True).start()

    def end(self) -> None:
        """Stop watching: from now on a ps may exit."""
        self._is_over = True

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Context around each exchange; raises if a ps is already lost."""
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
        while self._lost and not self._is_over:
            since = self._calling_since
            if since is not None and time.monotonic() > max(since, lost_at) + PATIENCE_S:
                self._on_stuck(self._lost)
                return
            time.sleep(_POLL_S)


@contextlib.contextmanager
def leave_if_stuck(timeout_s: float, reason: str) -> Iterator[None]:
    """End this process if the body takes longer, because the runtime may wait forever."""

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
    """Turn TensorFlow's errors for a lost ps into RetryableError."""
    try:
        yield
    except LOST as error:
        reason = " ".join(str(error.message).split())[:300]  # the first line only names the ps
        raise RetryableError(f"the ps is lost ({type(error).__name__}: {reason})") from error


def never_returning(num_ps: int) -> list[Any]:
    """Add a dequeue per ps that never completes; it fails when that ps dies."""
    waiting = []
    for ps in range(num_ps):
        with tf.device(f"/job:ps/task:{ps}"):
            nothing = tf.queue.FIFOQueue(1, [tf.bool], [()], shared_name="nothing")
            waiting.append(nothing.dequeue())
    return waiting
