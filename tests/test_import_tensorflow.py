"""TensorFlow's import: silent, without what nobody asked for, with all of it for who asks."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, sys
from a3c.process.startup import import_tensorflow
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


EAGER = """
from a3c.process.environment import adopt_environment
from a3c.process.startup import import_tensorflow, start_eager_runtime
adopt_environment(1)
import_tensorflow()
start_eager_runtime()
import tensorflow as tf
server = tf.distribute.Server.create_local_server(
    tf.compat.v1.ConfigProto(device_count={"GPU": 0})
)
with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
    section = tf.CriticalSection(shared_name="section")
    print(session.run(section.execute(lambda: tf.constant(1))))
"""


def test_nothing_is_said_of_gpus_where_none_is_wanted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EAGER], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["1"], "")
