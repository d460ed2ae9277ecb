"""`make next` says plainly what passes with the newest libraries and what doesn't."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from tests import newest
from tests.newest import Outcome

ENDS_WELL = (sys.executable, "-c", "")
ENDS_BADLY = (sys.executable, "-c", "print('before'); 1 / 0")


Table = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Table:
    """The exit code and the lines that `make next` prints for such checks."""

    def said(checks: dict[str, tuple[str, ...]], broke: str | None = None) -> tuple[int, list[str]]:
        monkeypatch.setattr(newest, "CHECKS", checks)
        monkeypatch.setattr(newest, "install", lambda *_: Outcome(61.0, broke))
        monkeypatch.setattr(newest, "show_versions", lambda *_: None)
        monkeypatch.setattr(sys, "argv", ["newest.py"])
        code = newest.main()
        return code, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return said


def test_what_breaks_is_named_with_its_error(table: Table) -> None:
    assert table({"good": ENDS_WELL})[1][-1] == "next: nothing breaks"
    code, lines = table({"good": ENDS_WELL, "bad": ENDS_BADLY})
    assert code == 1
    assert lines[-1] == "next: bad: not passed"
    assert lines[-3] == "bad 0 broke: ZeroDivisionError: division by zero"
    assert lines[-4] == "good 0 ok"


def test_nothing_is_checked_where_the_installation_breaks(table: Table) -> None:
    code, lines = table({"good": ENDS_WELL}, "broke: ERROR: no such version")
    assert (code, lines[-1]) == (1, "next: installation: not passed")
    assert not any("good" in line for line in lines)


def test_a_check_ends_with_the_time() -> None:
    sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
    outcome = newest.run(sleeps, time.monotonic() + 0.5)
    assert outcome.reason == "no result: the time is over"
    assert outcome.seconds < 30


def test_the_cause_of_a_failed_test_is_its_error() -> None:
    said = """F
E   AssertionError: 3 is not 4
=== short test summary info ===
FAILED tests/test_a.py::test_b - AssertionError: 3 is not 4
1 failed in 3.05s
"""
    assert newest.cause(said).startswith("broke: FAILED tests/test_a.py::test_b")
    assert newest.cause("a\nlast\n\n") == "broke: last"


def test_upper_limits_end_only_beyond() -> None:
    allowed, beyond = (dict(newest.requirements(beyond=b)) for b in (False, True))
    assert (
        allowed.keys()
        == beyond.keys()
        > {"tensorflow", "pytest", "gymnasium[atari,classic-control]"}
    )
    assert "<" in allowed["tensorflow"]
    assert allowed["tensorflow"].startswith(beyond["tensorflow"] + ",<")
    assert {name for name in allowed if allowed[name] != beyond[name]} == {
        "tensorflow",
        "gymnasium[atari,classic-control]",
        "ale-py",
    }
