"""Save and load arrays by name in TensorFlow's checkpoint files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

# The errors that TensorFlow raises for a file that isn't one of its checkpoints.
UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError)


def save(prefix: Path, values: Mapping[str, np.ndarray]) -> None:
    """Write a TensorFlow checkpoint, `prefix.index` and `prefix.data-...`, in one shard."""
    names = sorted(values)
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(values[name].dtype, None) for name in names]
        write = tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=inputs,
        )
        feed = dict(zip(inputs, (values[name] for name in names), strict=True))
        with tf.compat.v1.Session(config=_cpu_only()) as session:
            session.run(write, feed)


def load(prefix: Path) -> dict[str, np.ndarray]:
    """Load every array of a TensorFlow checkpoint by name."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _cpu_only() -> tf.compat.v1.ConfigProto:
    return tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_count={"GPU": 0}
    )
