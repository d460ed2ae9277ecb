"""Output of a kept process on its way to log, terminal and record."""

import itertools
import os
import pickle
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from a3c.keeper.capture import TAIL_LINES, Capture, Echo, Tail

STREAMS = st.lists(
    st.sampled_from([b"a", b"b", b"\r", b"\n", b"\t", b"\x1b[1;31m", b"\xc3", b"\xbc", b"\x00"])
).map(b"".join)


@given(STREAMS, st.lists(st.integers(0, 300)))
def test_tail_does_not_depend_on_how_the_stream_was_cut(data: bytes, cuts: list[int]) -> None:
    whole, pieces = Tail(), Tail()
    whole.feed(data)
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(ends):
        pieces.feed(data[start:end])
    assert pieces.lines() == whole.lines()


@given(STREAMS | st.binary(max_size=300))
def test_tail_holds_printable_text_only(data: bytes) -> None:
    tail = Tail()
    tail.feed(data)
    assert not any(ord(c) < 32 and c != "\t" for line in tail.lines() for c in line)


def test_tail_is_the_last_lines_and_the_line_in_the_making() -> None:
    tail = Tail()
    tail.feed(b"".join(b"line %d\n" % i for i in range(100)) + b"half")
    assert tail.lines() == [*(f"line {i}" for i in range(101 - TAIL_LINES, 100)), "half"]


def test_a_progress_bar_and_colours_read_as_on_the_screen() -> None:
    tail = Tail()
    tail.feed(b"\x1b[31mred\x1b[0m\r\n0%\r100%\r\n 10%\r 20%\r 30%")
    assert tail.lines() == ["red", "100%", " 30%"]


def test_a_line_without_end_takes_bounded_memory() -> None:
    tail = Tail()
    for _ in range(100):
        tail.feed(b"x" * 10_000)
    assert [len(line) for line in tail.lines()] == [500]
    assert len(pickle.dumps(tail)) < 20_000


def test_a_log_that_was_rotated_or_deleted_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "worker-0.log"
    path.parent.mkdir()
    capture = Capture(path, None)
    capture.feed(b"a\n")
    old = path.rename(path.with_suffix(".1"))
    capture.feed(b"b\n")
    assert (old.read_text(), path.read_text()) == ("a\n", "b\n")
    path.unlink()
    capture.feed(b"c\n")
    assert path.read_text() == "c\n"
    moved = path.parent.rename(tmp_path / "moved")
    capture.feed(b"d\n")
    assert (moved / path.name).read_text() == "c\nd\n"


def test_a_reader_that_stops_reading_blocks_nothing_and_gets_the_newest_later() -> None:
    reader, writer = os.pipe()
    echo = Echo(writer)
    for i in range(100):
        echo.write(b"%d " % i * 20_000)
    got = b""
    while echo.pending:
        got += os.read(reader, 65_536)
        echo.flush()
    got += os.read(reader, 1 << 20)
    assert len(got) < 1_000_000
    assert got.endswith(b" 99 99 ")
    for descriptor in (echo.fd, reader, writer):
        os.close(descriptor)
