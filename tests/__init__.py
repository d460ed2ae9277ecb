"""Short names of what fixtures of pytest give, and a check of what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from a3c.errors import UserError

Log = pytest.LogCaptureFixture
Out = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def refused(what: str, call: Callable[..., object], *given: Any, **named: Any) -> str:
    """The one line with which a call is refused, found to say `what`, a pattern."""
    with pytest.raises(UserError, match=what) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert len(line.splitlines()) == 1, line
    return line
