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

    It greets on file descriptor 2 before its own logging is up, so the descriptor is turned aside.
    `tensorflow.keras` is there as ever, imported by its first use.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(2)
        try:
            os.dup2(aside.fileno(), 2)
            with _without_keras(), _without_collections():
                import tensorflow

                if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
                    # Graphs with conditions start the eager runtime. It looks for GPUs once, and
                    # calls it a failure where the driver is missing.
                    tensorflow.config.list_logical_devices("CPU")
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
