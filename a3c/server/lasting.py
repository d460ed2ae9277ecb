"""A session on the cluster that only the end of its process ends."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf


class LastingSession(tf.compat.v1.Session):
    """A session that is not closed when it goes out of use, and whose callables are not released.

    Both talk to the ps, and wait for it where it is lost or was started anew: a process that wants
    to leave because of just that would hang.
    """

    _callables: ClassVar[list[Any]] = []

    def _make_callable_from_options(self, callable_options: Any) -> Any:
        made = super()._make_callable_from_options(callable_options)
        self._callables.append(made)
        return made

    def __del__(self) -> None:
        """Do nothing, where TensorFlow would close the session."""
