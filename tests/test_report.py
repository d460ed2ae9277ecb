"""What child mode says in plain lines while a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from a3c.launch import run_summary
from a3c.process.console import beside
from tests.fake_runs import FakeRun, configure


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said, without waiting between lines."""
    lines: list[str] = []
    monkeypatch.setattr(run_summary, "LINE_INTERVAL_S", 0.0)
    monkeypatch.setattr(run_summary.log, "info", lambda form, *rest: lines.append(form % rest))
    return lines


def test_while_nothing_moves_it_says_once_on_whom_each_process_waits(
    tmp_path: Path, said: list[str]
) -> None:
    made = FakeRun(tmp_path / "run", configure(env_id="CartPole-v1", workers=2))
    speaker = run_summary.Progress(made.run)
    line = "13:00:01 worker-1 waiting for ps-0 at 127.0.0.1:4000 (Connection refused)"
    made.process("worker-0", output_tail=("2026-11-21 13:00:00 keeper: worker-0 runs as pid 7",))
    made.process("worker-1", output_tail=(line, "2026-11-21 13:00:02 keeper: a word of its own"))
    speaker.poll()
    speaker.poll()
    assert said == ["worker-1: waiting for ps-0 at 127.0.0.1:4000 (Connection refused)"]
    made.process("worker-1", output_tail=(line, "13:00:03 worker-1 waiting for worker-0 to begin"))
    speaker.poll()
    assert said[1:] == ["worker-1: waiting for worker-0 to begin"]


def test_a_run_that_moves_has_a_line_for_its_progress_alone(
    tmp_path: Path, said: list[str]
) -> None:
    made = FakeRun(tmp_path / "run", configure(env_id="CartPole-v1", workers=1))
    made.process("worker-0", output_tail=("13:00:01 worker-0 waiting for ps-0 at 127.0.0.1:1",))
    made.rows("worker-0", [made.chief_row(5000, 9.0, 80.0)])  # of before it was resumed
    speaker = run_summary.Progress(made.run)
    speaker.poll()
    assert "env steps" not in "".join(said)
    said.clear()
    made.rows("worker-0", [made.chief_row(1000, 0.0, 12.5)])
    speaker.poll()
    (line,) = said
    assert "1,000 env steps" in line
    assert "mean return 12.5" in line


@pytest.mark.parametrize(
    ("mean", "mark", "shown"),
    [
        (0.94, 0.95, "0.94"),
        (0.9496, 0.95, "0.9496"),
        (474.96, 475.0, "474.96"),
        (12.34, None, "12.3"),
        (500.0, 475.0, "500.0"),
        (0.95, 0.95, "0.95"),
    ],
)
def test_a_mean_is_never_rounded_to_the_other_side_of_its_mark(
    mean: float, mark: float | None, shown: str
) -> None:
    assert beside(mean, mark) == shown
    assert mark is None or (float(shown) >= mark) == (mean >= mark)


def test_a_link_is_said_when_it_is_there_and_when_it_changes(
    tmp_path: Path, said: list[str]
) -> None:
    made = FakeRun(tmp_path / "run", configure(env_id="CartPole-v1", workers=1))
    speaker = run_summary.Progress(made.run)
    speaker.poll()
    for link in ("http://127.0.0.1:1/", "http://127.0.0.1:1/", "http://127.0.0.1:2/"):
        made.run.board_link.write_text(link + "\n")
        speaker.poll()
    assert said == [f"TensorBoard is up at http://127.0.0.1:{port}/" for port in (1, 2)]
