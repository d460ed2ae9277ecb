"""TensorFlow's import: silent, without what nobody asked for, with all of it for who asks."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, sys
from a3c.quiet import import_tensorflow
import_tensorflow()
assert gc.isenabled()
print(*(name in sys.modules for name in ("tensorflow", "keras", "matplotlib")))
from tensorflow.keras import layers
import tensorflow as tf
assert tf.keras.layers.Dense is layers.Dense
import keras.src.optimizers
print(layers.Dense(3).units)
"""


def test_keras_is_imported_by_who_uses_it_and_by_nobody_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "False", "False", "3"]), done
