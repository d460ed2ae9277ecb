"""What a restarted process learns from files of metrics: rollbacks, losses, earlier games."""

from pathlib import Path

from a3c.run import rows
from a3c.run.metrics import JsonlSink
from a3c.run.rows import ChiefState, PsStart, latest, read_rows
from tests.snapshots import manifest

SAVED = manifest(100)


def attach(path: Path, ps_start: PsStart, env_steps: int, **notes: int) -> JsonlSink:
    sink = JsonlSink(path)
    sink.restart(rows.restart_point(path, ps_start, env_steps), ps_life=ps_start.number, **notes)
    return sink


def test_many_metrics_or_a_torn_last_line_hide_no_ps_life(tmp_path: Path) -> None:
    many = {f"info/metric-{n}": 1 / 3 for n in range(900)}
    torn = '\n{"event": "attached", "env_steps": 9'
    for name, row, end in (("worker-0", {"loss/total": 0.5}, torn), ("worker-1", many, "")):
        path = tmp_path / f"{name}.jsonl"
        attach(path, PsStart(7, 0), 0).write(90, row)
        with path.open("a") as file:
            file.write(end)
        assert rows.restart_point(path, PsStart(7, 0), 95) == 95, name


def test_a_worker_that_attaches_late_drops_just_its_rolled_back_rows(tmp_path: Path) -> None:
    """The ps went back from 500 to 100; when this worker attaches others are at 900 already."""
    path = tmp_path / "worker-1.jsonl"
    sink = attach(path, PsStart(1, 0), 0)
    for step in (50, 100, 300, 500):
        sink.write(step, {})
    for env_steps in (900, 1000):  # it returns to the same ps life
        attach(path, PsStart(2, 100), env_steps).write(env_steps + 50, {})
    assert [row["env_steps"] for row in read_rows(path)] == [50, 100, 950, 1050]


def test_a_loss_counts_from_the_furthest_worker_of_that_ps_life(tmp_path: Path) -> None:
    assert rows.newest_step(latest(tmp_path)) is None
    attach(tmp_path / "worker-2.jsonl", PsStart(1, 0), 0).write(9999, {})  # failed long ago
    attach(tmp_path / "worker-0.jsonl", PsStart(2, 100), 100).write(300, {})
    assert rows.newest_step(latest(tmp_path)) == 300
    attach(tmp_path / "worker-1.jsonl", PsStart(2, 100), 100).write(350, {})
    assert rows.newest_step(latest(tmp_path)) == 350
    said = rows.rollback_message(5000, 3200)
    assert said == "went back from env step 5,000 to 3,200: 1,800 env steps lost"
    lost = [{"from": 5000, "env_steps": 3200, "time": 9.0}, None, {"from": "x"}]
    assert rows.rollback_messages(lost) == rows.rollback_messages(lost, since=9.0) == (said,)
    assert rows.rollback_messages(lost, since=10.0) == ()


def test_a_chief_knows_what_happened_since_the_checkpoint_unless_restored(tmp_path: Path) -> None:
    """The first one died before its first row, from which wall time didn't go back to 0."""
    ps_start = PsStart(2, 100)
    sink = attach(tmp_path / "worker-0.jsonl", ps_start, 100)
    reports = attach(tmp_path / "episodes.jsonl", ps_start, 100, episodes=3)
    known = rows.chief_state(tmp_path, SAVED, ps_start)
    assert (known.wall_s, known.episodes, known.is_fresh) == (1.5, 3, False)
    sink.write(180, {"wall_s": 9.5})
    for number, step in ((4, 120), (5, 160)):
        game = {"worker": 1, "return": step / 10, "length": 5, "episodes": number}
        reports.write(step, game)
    known = rows.chief_state(tmp_path, SAVED, ps_start)
    assert known == ChiefState(9.5, 5, (12.0, 16.0), is_fresh=False)
    restored = rows.chief_state(tmp_path, SAVED, PsStart(3, 100))
    assert restored == ChiefState(1.5, 3, (1.0, -2.5), is_fresh=True)
    assert rows.chief_state(tmp_path, None, PsStart(3, 0)) == ChiefState()


def test_rows_share_the_names_of_their_metrics() -> None:
    first, second = (list(rows.parse_row(b'{"loss/total": 1, "env_steps": 2}') or {}) for _ in "ab")
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True]
