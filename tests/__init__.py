"""Short names of what fixtures of pytest give."""

import pytest

Log = pytest.LogCaptureFixture
Out = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
