"""Importing TensorFlow without its greetings, which no log level silences."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow; what it says on the way is shown only if the import fails.

    It greets on file descriptor 2 before its own logging is up, so the descriptor is turned aside.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(2)
        try:
            os.dup2(aside.fileno(), 2)
            import tensorflow  # noqa: F401
        except BaseException:
            os.dup2(kept, 2)
            aside.seek(0)
            shutil.copyfileobj(aside, sys.stderr.buffer)
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
