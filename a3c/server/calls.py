"""Calls of a TensorFlow session without what `Session.run` does in Python for each of them.

`Session.make_callable` is no short cut where something is fed: it goes through `Session.run`, which
looks at every feed and fetch anew. The runtime's own callables take the feeds in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

_CALLERS_THREAD = -1  # of RunOptions: no pool, so that no operation waits for a thread to wake up


def prepare(
    session: tf.compat.v1.Session,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    targets: Sequence[Any] = (),
) -> Callable[..., list[Any]]:
    """A function of the values of `inputs` that gives those of `outputs`, and runs `targets`.

    Values are cast to the types of the inputs, as `Session.run` does. Operations run in the thread
    that calls. An output can't be an input as well, nor come twice.
    """
    dtypes = [tensor.dtype.as_numpy_dtype for tensor in inputs]
    options = config_pb2.CallableOptions()
    options.feed.extend(tensor.name for tensor in inputs)
    options.fetch.extend(tensor.name for tensor in outputs)
    options.target.extend(operation.name for operation in targets)
    options.run_options.inter_op_thread_pool = _CALLERS_THREAD
    run = session._make_callable_from_options(options)
    return lambda *values: run(*map(np.asarray, values, dtypes))
