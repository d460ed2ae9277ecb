"""A session on the cluster that only the end of its process ends."""

from __future__ import annotations

import tensorflow as tf


class LastingSession(tf.compat.v1.Session):
    """A session that is not closed when it goes out of use.

    Closing one talks to the ps, and waits for ever where that is lost or was started anew: a
    process that wants to leave because of just that would hang.
    """

    def __del__(self) -> None:
        """Do nothing, where TensorFlow would close the session."""
