"""Import TensorFlow faster, and without the start-up messages that no log level turns off."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

# TensorFlow's last import, needed only to save Keras models; if it fails, TensorFlow continues
# without it. Keras also imports Matplotlib: a quarter of the whole time, and 50 MB.
_EAGER = "keras.src.optimizers"


def import_tensorflow() -> None:
    """Import TensorFlow; its messages are shown only if the import fails.

    TensorFlow writes to file descriptor 2 before its own logging is set up. `tensorflow.keras`
    still works: its first use imports it.
    """
    with _silence(), _without_keras(), _without_collections():
        import tensorflow  # noqa: F401


def start_eager_runtime() -> None:
    """Start TensorFlow's eager runtime without its messages, if no GPU is wanted.

    Graphs with conditions would start it anyway. The runtime searches for GPUs once and reports an
    error if the driver is missing. It starts threads, so forks of this process can't use TensorFlow
    afterwards.
    """
    import tensorflow

    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        with _silence():
            tensorflow.config.list_logical_devices("CPU")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Capture file descriptor 2, and show the captured text only if the block fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(2)
        try:
            os.dup2(aside.fileno(), 2)
            yield
        except BaseException:
            os.dup2(kept, 2)
            aside.seek(0)
            shutil.copyfileobj(aside, sys.stderr.buffer)
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    if "keras" in sys.modules:
        yield
        return
    sys.modules[_EAGER] = None  # type: ignore[assignment] # None makes Python refuse the import
    try:
        yield
    finally:
        del sys.modules[_EAGER]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Turn garbage collection off: it finds almost nothing and takes a tenth of the import."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
