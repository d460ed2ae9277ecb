"""Importing TensorFlow sooner, and without its greetings, which no log level silences."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

# What TensorFlow imports of Keras at its end, for who saves Keras models; it does without where
# that fails. Keras brings Matplotlib along: a quarter of the whole time, and 50 MB.
_EAGER = "keras.src.optimizers"


def import_tensorflow() -> None:
    """Import TensorFlow; what it says on the way is shown only if the import fails.

    It greets on file descriptor 2 before its own logging is up. `tensorflow.keras` is there as
    ever, imported by its first use.
    """
    with _silence(), _without_keras(), _without_collections():
        import tensorflow  # noqa: F401


def start_eager_runtime() -> None:
    """Start what graphs with conditions start anyway, where no GPU is wanted: silently.

    It looks for GPUs once, and calls it a failure where the driver is missing. It has threads, so
    no fork of this process can use TensorFlow afterwards.
    """
    import tensorflow

    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        with _silence():
            tensorflow.config.list_logical_devices("CPU")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Turn file descriptor 2 aside; what was written to it is shown if this fails."""
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
    sys.modules[_EAGER] = None  # type: ignore[assignment] # Python's own sign for "not to be had"
    try:
        yield
    finally:
        del sys.modules[_EAGER]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Nearly nothing that an import makes is garbage: looking for it takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
