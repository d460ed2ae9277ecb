"""A session on the cluster that is never closed before its process ends."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf


class LastingSession(tf.compat.v1.Session):
    """A session that Python never closes, and whose callables are never released.

    Closing and releasing both call the ps, and wait if the ps is lost or was restarted. A process
    that exits because the ps is lost would hang there.
    """

    _callables: ClassVar[list[Any]] = []

    def _make_callable_from_options(self, callable_options: Any) -> Any:
        made = super()._make_callable_from_options(callable_options)
        self._callables.append(made)
        return made

    def __del__(self) -> None:
        """Do nothing; TensorFlow's own method would close the session."""
