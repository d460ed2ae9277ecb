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


COMPILED = """
import sys, typing
convert, names = typing._type_convert, []
sys.addaudithook(lambda event, of: event == "compile" and of[1] == "<string>" and names.append(of))
from a3c.quiet import import_tensorflow
import_tensorflow()
assert typing._type_convert is convert
assert typing.List["int"] == typing.List["int"]
print(len(names))
"""


def test_the_names_of_types_are_not_compiled_again_and_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 2_000
