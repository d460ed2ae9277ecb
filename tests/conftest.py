"""Settings for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# A busy machine makes single examples slow; that is no failure.
settings.register_profile("a3c", deadline=None)
settings.load_profile("a3c")

# Under nohup, as some CI runs, SIGHUP is ignored, and children would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
