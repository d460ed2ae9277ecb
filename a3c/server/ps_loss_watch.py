"""How a worker learns that a ps is lost, and what it does about calls that hang.

A call to a ps's own master that is gone waits for another ps in its place, until the session's
time-out. So one call through this process's own master, which never returns while all ps are there,
tells at once when one is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from a3c.errors import EXIT_RETRY, RetryableError

log = logging.getLogger(__name__)

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
        """Around each exchange."""
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
