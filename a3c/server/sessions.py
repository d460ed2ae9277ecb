"""TensorFlow sessions, fast calls in them, and what to do when a ps is lost."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import CallableOptions

from a3c.errors import EXIT_RETRY, RetryableError, reason_of
from a3c.process.signals import leave_now

log = logging.getLogger(__name__)

# A ps refuses a call whose number is among its last 100,000. TensorFlow draws the number in a new
# thread for each call, by a generator with a seed of 32 bits, so one call in 43,000 is refused by
# mistake, before any of its operations run. A call that gRPC repeats after its connection broke
# is refused with "(Master)" instead.
_REFUSED = "The same RunGraph (Worker) request was received twice"

# TensorFlow's errors for a ps that closed its connection, or that lost its memory in a restart.
LOST = (
    *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError),
    *(tf.errors.CancelledError, tf.errors.FailedPreconditionError, tf.errors.NotFoundError),
    *(tf.errors.InternalError, tf.errors.UnknownError),
)


class UnclosedSession(tf.compat.v1.Session):
    """A session that is never closed, and whose callables are never released.

    Both would call the ps, and a process that exits because its ps is lost would hang there.
    """

    callables: ClassVar[list[Any]] = []

    def __init__(self, target: str, graph: Any, timeout_s: float, *peers: str) -> None:
        """The first call waits only for these `peers`, such as `/job:ps`."""
        config = tf.compat.v1.ConfigProto(
            device_filters=peers, operation_timeout_in_ms=int(timeout_s * 1000)
        )
        super().__init__(target, graph, config)

    def run(self, *arguments: Any, **options: Any) -> Any:
        return retry_refused(super().run, *arguments, **options)

    def __del__(self) -> None:
        """Do nothing; TensorFlow's own method would close the session."""


def prepare(
    session: tf.compat.v1.Session,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    targets: Sequence[Any] = (),
) -> Callable[..., list[Any]]:
    """Make a function from the values of `inputs` to those of `outputs`, which also runs `targets`.

    It skips the checks of `Session.run`, which take five times as long as one action. It casts
    values to the inputs' dtypes and runs operations in the calling thread. An output must not be an
    input too, and must not occur twice.
    """
    dtypes = [tensor.dtype.as_numpy_dtype for tensor in inputs]
    options = CallableOptions(
        feed=[tensor.name for tensor in inputs],
        fetch=[tensor.name for tensor in outputs],
        target=[operation.name for operation in targets],
        # -1 means no thread pool, so no operation waits for a thread to wake.
        run_options=tf.compat.v1.RunOptions(inter_op_thread_pool=-1),
    )
    run = session._make_callable_from_options(options)
    if isinstance(session, UnclosedSession):
        session.callables.append(run)
    return lambda *values: retry_refused(run, *map(np.asarray, values, dtypes))


def retry_refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Make a call and return its result; repeat it while the ps refuses it as a duplicate."""
    while True:
        try:
            return call(*arguments, **options)
        except tf.errors.AbortedError as error:
            if _REFUSED not in error.message:
                raise


@contextlib.contextmanager
def exit_after(timeout_s: float) -> Iterator[None]:
    """End this process if the body takes longer, because the runtime may wait forever."""

    def leave() -> None:
        log.error("the ps does not answer within %g s; exiting with code %d", timeout_s, EXIT_RETRY)
        leave_now(EXIT_RETRY)

    timer = threading.Timer(timeout_s, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def raise_if_ps_lost() -> Iterator[None]:
    """Turn TensorFlow's errors for a lost ps into RetryableError."""
    try:
        yield
    except LOST as error:
        raise RetryableError(
            f"the ps is lost ({type(error).__name__}: {reason_of(error)})"
        ) from error
