"""The uses of names that TensorFlow keeps private, each with its public fall-back.

A release may remove such a name. Then the fall-back is used, with the same results but slower. This
module doesn't import TensorFlow by itself, because its import is a part of what is done here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger(__name__)

# TensorFlow's last import, needed only to save Keras models; if it fails, TensorFlow continues
# without it. Keras also imports Matplotlib: a quarter of the whole time, and 50 MB.
_LAST_IMPORT = "keras.src.optimizers"
_CALLERS_THREAD = -1  # in RunOptions: no thread pool, so no operation waits for a thread to wake


# --- importing without Keras; the fall-back is the plain import -----------------------------------


def import_without_keras() -> None:
    """Import TensorFlow without Keras, or with it if TensorFlow insists on it."""
    if "keras" not in sys.modules:
        sys.modules[_LAST_IMPORT] = None  # type: ignore[assignment] # Python refuses its import
        try:
            with contextlib.suppress(ImportError):
                import tensorflow
        finally:
            del sys.modules[_LAST_IMPORT]
    import tensorflow  # noqa: F401


# --- calls without the checks of Session.run; the fall-back is Session.run ------------------------


def make_callable(
    session: Any, inputs: Sequence[Any], outputs: Sequence[Any], targets: Sequence[Any]
) -> Callable[..., Any]:
    """A function from the values of `inputs`, as arrays of their dtypes, to those of `outputs`.

    It also runs `targets`. Operations run in the calling thread.
    """
    import tensorflow as tf

    run_options = tf.compat.v1.RunOptions(inter_op_thread_pool=_CALLERS_THREAD)
    try:
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        make = session._make_callable_from_options
    except (ImportError, AttributeError):
        log.warning("this TensorFlow has no prepared calls: Session.run is used, which is slower")
        run = session.make_callable([list(outputs), list(targets)], list(inputs), True)
        return lambda *values: run(*values, options=run_options)[0]
    return make(
        CallableOptions(
            feed=[tensor.name for tensor in inputs],
            fetch=[tensor.name for tensor in outputs],
            target=[operation.name for operation in targets],
            run_options=run_options,
        )
    )
