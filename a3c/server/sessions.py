"""TensorFlow sessions and their calls, as this program needs them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

_CALLERS_THREAD = -1  # in RunOptions: no thread pool, so no operation waits for a thread to wake
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_MOST_KEPT = 512 * 1024 * 1024
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def for_cluster(target: str, graph: Any, timeout_s: float, *peers: str) -> LastingSession:
    """A session that waits only for these peers, as `/job:ps`, before its first call."""
    config = tf.compat.v1.ConfigProto(
        device_filters=peers, operation_timeout_in_ms=int(timeout_s * 1000)
    )
    return LastingSession(target, graph=graph, config=config)


class LastingSession(tf.compat.v1.Session):
    """A session that Python never closes, and whose callables are never released.

    Closing and releasing both call the ps, and wait if the ps is lost or was restarted. A process
    that exits because the ps is lost would hang there.
    """

    _callables: ClassVar[list[Any]] = []

    def _make_callable_from_options(self, callable_options: Any) -> Any:
        made = super()._make_callable_from_options(callable_options)
        self._callables.append(made)
        return made

    def __del__(self) -> None:
        """Do nothing; TensorFlow's own method would close the session."""


def prepare(
    session: tf.compat.v1.Session,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    targets: Sequence[Any] = (),
) -> Callable[..., list[Any]]:
    """Make a function from the values of `inputs` to those of `outputs`, which also runs `targets`.

    Unlike `Session.run` and `make_callable` it doesn't check every feed and fetch at each call.
    Values are cast to the inputs' dtypes. Operations run in the calling thread. An output must not
    be an input too, and must not occur twice.
    """
    dtypes = [tensor.dtype.as_numpy_dtype for tensor in inputs]
    options = config_pb2.CallableOptions()
    options.feed.extend(tensor.name for tensor in inputs)
    options.fetch.extend(tensor.name for tensor in outputs)
    options.target.extend(operation.name for operation in targets)
    options.run_options.inter_op_thread_pool = _CALLERS_THREAD
    run = session._make_callable_from_options(options)
    return lambda *values: run(*map(np.asarray, values, dtypes))


def keep_freed_memory() -> None:
    """Keep freed memory for the next message, instead of returning it to the kernel.

    Every exchange needs the same buffers; getting their pages again took a third of a worker's CPU
    time for an exchange. Nothing changes if the library is not glibc, or if the user has set its
    own variables.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    set_option(_M_TRIM_THRESHOLD, _MOST_KEPT)
    set_option(_M_MMAP_THRESHOLD, _MOST_KEPT)
