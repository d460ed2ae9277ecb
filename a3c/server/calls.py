"""Calls of a TensorFlow session without the Python overhead of `Session.run`.

With feeds, `Session.make_callable` is not faster: it goes through `Session.run`, which checks every
feed and fetch at each call. The runtime's own callables take the feeds in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

_CALLERS_THREAD = -1  # in RunOptions: no thread pool, so no operation waits for a thread to wake


def prepare(
    session: tf.compat.v1.Session,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    targets: Sequence[Any] = (),
) -> Callable[..., list[Any]]:
    """Make a function from the values of `inputs` to those of `outputs`, which also runs `targets`.

    Values are cast to the inputs' dtypes, as in `Session.run`. Operations run in the calling
    thread. An output must not be an input too, and must not occur twice.
    """
    dtypes = [tensor.dtype.as_numpy_dtype for tensor in inputs]
    options = config_pb2.CallableOptions()
    options.feed.extend(tensor.name for tensor in inputs)
    options.fetch.extend(tensor.name for tensor in outputs)
    options.target.extend(operation.name for operation in targets)
    options.run_options.inter_op_thread_pool = _CALLERS_THREAD
    run = session._make_callable_from_options(options)
    return lambda *values: run(*map(np.asarray, values, dtypes))
