"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine makes single examples slow; that is no failure.
settings.register_profile("a3c", deadline=None)
settings.load_profile("a3c")
