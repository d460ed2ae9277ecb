"""The import of TensorFlow: silent, and without Keras until it is used."""

from __future__ import annotations

import sys

from tests.runs import call

SCRIPT = """
import gc, sys
from a3c.process.environment import adopt_environment
from a3c.process.startup import import_tensorflow, start_eager_runtime
adopt_environment(1)
import_tensorflow()
assert gc.isenabled()
print(*(name in sys.modules for name in ("tensorflow", "keras", "matplotlib")))
start_eager_runtime()
import tensorflow as tf
server = tf.distribute.Server.create_local_server(
    tf.compat.v1.ConfigProto(device_count={"GPU": 0})
)
with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
    section = tf.CriticalSection(shared_name="section")
    print(session.run(section.execute(lambda: tf.constant(1))))
from tensorflow.keras import layers
assert tf.keras.layers.Dense is layers.Dense
import keras.src.optimizers
print(layers.Dense(3).units)
"""


def test_tensorflow_is_imported_silently_and_keras_only_by_who_uses_it() -> None:
    """No message about GPUs either: none is wanted."""
    done = call(sys.executable, "-c", SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.split() == ["True", "False", "False", "1", "3"]
