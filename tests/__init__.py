"""Short names of what fixtures of pytest give, and what functions refuse and commands say."""

import contextlib
import io
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest

from a3c.errors import UserError

Log = pytest.LogCaptureFixture
Out = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

T = TypeVar("T")


def not_none(value: T | None, what: object = "it is missing") -> T:
    """The value, found to be there, also for mypy."""
    assert value is not None, what
    return value


def refused(what: str, call: Callable[..., object], *given: Any, **named: Any) -> str:
    """The one line with which a call is refused, found to say `what`, a pattern."""
    with pytest.raises(UserError, match=what) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert len(line.splitlines()) == 1, line
    return line


class Said(NamedTuple):
    """The exit code of a command, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on stderr."""
        (line,) = self.err.splitlines()
        return line


def ended(code: int | None, main: Callable[[list[str]], object], *words: str) -> Said:
    """Call a command in this process; its exit code is `code`, or any for None."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            found: Any = main([*words])
        except SystemExit as left:
            found = left.code
    said = Said(found, out.getvalue(), err.getvalue())
    assert code in (None, found), said
    return said
