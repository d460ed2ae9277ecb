"""Long work says how far it is."""

import io
from collections.abc import Iterator

from a3c.process.console import Progress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, step_s: float) -> str:
    """What is written while five games are played, one every `step_s` seconds."""
    times: Iterator[float] = iter(step_s * n / 2 for n in range(100))
    with Progress(stream, lambda: next(times)) as progress:
        for ended in range(5):
            progress.played(ended, 5, 100 * (ended + 1))
    return stream.getvalue()


def test_a_terminal_shows_one_line_which_is_removed_at_the_end() -> None:
    *lines, last = shown(Terminal(), 1.0).split("\r")[1:]
    assert [line.partition(",")[0] for line in lines] == [
        f"played {n} of 5 games" for n in range(5)
    ]
    assert lines[0] == "played 0 of 5 games, 100 env steps\x1b[K"
    assert "s left" in lines[1]
    assert last == "\x1b[K"


def test_a_file_has_a_line_every_ten_seconds_and_none_for_short_work() -> None:
    assert shown(io.StringIO(), 0.5) == ""
    (line, *_) = shown(io.StringIO(), 12.0).splitlines()
    assert line.startswith("played 1 of 5 games, 200 env steps, about ")
