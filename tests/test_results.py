"""A plan of long runs that continues after stops, without its run folders and on other machines."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from a3c.errors import UserError
from a3c.run import checkpoint, rundir
from a3c.run.checkpoint import COMPACT as COMPACT_WEIGHTS
from a3c.run.checkpoint import MANIFEST
from a3c.run.rundir import REPOSITORY, RunDir
from benchmarks import machine, results, results_page
from benchmarks.results import COMPACT, SCRATCH, Goal, Results
from tests import not_none, runs

STEPS = 60_000  # a few seconds, so that a stop comes before the end
POLE = Goal("CartPole-v1", 1, STEPS, STEPS)


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.results", "--games", POLE.env_id, "--seeds", "1"]
    command += ["--env-steps", str(STEPS), "--workers", "1", "--save-every", "1"]
    for name in ("folder", "output", "zoo"):
        command += [f"--{name}", str(folder / name)]
    command += [*flags, "--", "--checkpoint-interval", "0.5"]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and output; it is stopped if the test fails meanwhile."""
    try:
        said, _ = process.communicate(timeout=runs.DEADLINE_S)
    finally:
        process.terminate()
        process.wait()
    return process.returncode, said


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run that was stopped half-way, and whose run folder is gone."""
    root = tmp_path_factory.mktemp("results")
    place = Results(*(root / name for name in ("folder", "output", "zoo")))
    process = start(root)
    try:
        runs.wait_until(lambda: place.last(POLE) or process.poll() is not None, "a first row")
        process.send_signal(signal.SIGTERM)
    finally:
        code, said = finish(process)
    assert (code, "begun" in said) == (128 + signal.SIGTERM, True), said
    assert runs.everything_ended(place.folder / POLE.run)
    shutil.rmtree(place.folder / POLE.run)
    return place


def test_a_stop_leaves_a_row_and_a_compact_checkpoint(stopped: Results) -> None:
    row, small = not_none(stopped.last(POLE)), stopped.output / POLE.run
    assert (row["begun_from"], row["mean"], row["workers"]) == (SCRATCH, "", "1")
    kept = checkpoint.verify(small)
    assert 0 < kept.step < STEPS
    assert int(row["env_steps"]) == kept.step
    assert sum(path.stat().st_size for path in small.iterdir()) < 50_000


def test_a_run_goes_on_from_its_compact_checkpoint_and_ends_in_the_zoo(stopped: Results) -> None:
    begun_from, kept = stopped.furthest(POLE)
    assert kept
    root = stopped.folder.parent
    with (stopped.folder / f"{POLE.run}.log").open("ab") as held:
        assert rundir.lock(held.fileno())  # as another process that works on this run
        assert (finish(start(root))[0], len(stopped.sessions())) == (0, 1)
    code, said = finish(start(root))
    assert code == 0, said
    row = not_none(stopped.last(POLE))
    assert (row["begun_from"], row["from_env_steps"]) == (begun_from, str(kept.step))
    assert (begun_from, row["games"]) == (COMPACT, "100")
    log = (stopped.folder / POLE.run / "logs" / "worker-0.log").read_text()
    assert f"env step {kept.step}, a compact checkpoint: the optimizer's statistics start" in log
    curve = [[*row.values()] for row in machine.read(stopped.output / f"{POLE.run}.csv")]
    steps, seconds, _ = np.array(curve, float).T
    assert (np.diff([steps, seconds]) > 0).all()
    assert steps[0] <= kept.step < STEPS <= steps[-1] <= int(row["env_steps"])
    agent = not_none(checkpoint.verify(stopped.zoo / "cartpole").evaluation)
    assert float(row["mean"]) == pytest.approx(agent["mean"], abs=0.01)
    assert agent["mean"] > 50
    assert finish(start(root, "--list"))[1].count("finished: mean") == 1
    assert not finish(start(root))[0]
    assert len(stopped.sessions()) == 2  # nothing was left to do


def test_a_game_of_the_same_short_name_is_another_game(tmp_path: Path) -> None:
    known = Goal("HalfCheetah-v5", 1, STEPS, STEPS)
    kept = Results(tmp_path, machine.RESULTS / "games", tmp_path)
    assert kept.is_finished(known)
    assert kept.furthest(known)[1]
    older = known._replace(env_id="HalfCheetah-v4")
    assert not kept.is_finished(older)
    with pytest.raises(UserError, match="halfcheetah-1 is of HalfCheetah-v5, not of Half"):
        kept.furthest(older)
    shipped = Results(tmp_path, tmp_path, REPOSITORY / "zoo")
    with pytest.raises(UserError, match="give another --zoo"):
        shipped.furthest(older)


def test_a_damaged_run_folder_is_put_aside_for_the_compact_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(machine.RESULTS / "games" / POLE.run, tmp_path / "output" / POLE.run)
    place = Results(*(tmp_path / name for name in ("folder", "output", "zoo")))
    run = RunDir(place.folder / POLE.run)
    for _ in range(2):
        begun_from, kept = place.furthest(POLE)
        assert begun_from == COMPACT
        step = not_none(kept).step
        results.unpack(place, POLE, not_none(kept))
        assert not_none(checkpoint.newest_valid(run.checkpoints))[1].step == step
        newest, older = run.checkpoints / str(step), run.checkpoints / "1"
        shutil.copytree(newest, older, dirs_exist_ok=True)
        text = (older / MANIFEST).read_text().replace(f'"step": {step}', '"step": 1')
        (older / MANIFEST).write_text(text)
        (newest / COMPACT_WEIGHTS).write_bytes(b"damaged")
    assert len([*place.folder.glob(f"{POLE.run}-before-*")]) == 1


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_a_run_except_under_nohup(ignored: bool, tmp_path: Path) -> None:
    lines = (
        "import os, signal, sys; from benchmarks import results",
        "stop = results.Stop(0.05 if len(sys.argv) > 1 else 9.0)",  # 3 s under nohup
        "os.kill(os.getpid(), signal.SIGHUP)",
        "with open('log', 'ab') as log: results.follow(['sleep', '99'], log, stop)",
        "print('unheard', flush=True)",
        "sys.exit(stop.signal)",
    )
    command = [sys.executable, "-c", "\n".join(lines), *(["ignored"] if ignored else [])]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = ["nohup", *command] if ignored else command
    done = runs.call(*command, cwd=tmp_path, env=environment)
    expected = (0, "unheard\n") if ignored else (signal.SIGHUP, "")
    assert (done.returncode, done.stdout) == expected, done.stderr


def test_the_page_and_its_picture_are_made_from_the_index_and_the_curves(tmp_path: Path) -> None:
    where = ("2026-01-01 00:00:00", "abc", "2 cores", 0.5)
    rows = [
        results.Session(*where, f"pong-{n}", "ALE/Pong-v5", n, SCRATCH, 0, "x")._replace(
            env_steps=results.WHOLE, games=100, mean=mean, deviation=1.0
        )
        for n, mean in ((1, 20.0), (2, 21.0))
    ]
    short = rows[0]._replace(run="pong-3", seed=3, env_steps=99, games="", mean="")  # has no curve
    machine.write(tmp_path / "index.csv", [*rows, short])
    for row in rows:
        points = [results.Point(n * 20_000, n * 9.0, n / 2 + row.seed) for n in range(1, 20)]
        machine.write(tmp_path / f"{row.run}.csv", points)
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    page.write_text("<!-- table: Atari -->\n<!-- end -->\n<!-- table: runs -->\n<!-- end -->\n")
    command = [sys.executable, "-m", "benchmarks.results_page", "--output", str(tmp_path)]
    runs.call(*command, "--page", str(page), "--picture", str(picture), cwd=REPOSITORY, check=True)
    table = page.read_text()
    assert "| Pong | 17.3 | 21 | – | 20.9 | 20.5 | 20.5 (20.0 to 21.0) | 2 |" in table
    assert table.count(results_page.NOT_YET) == 6
    assert "| pong-2 | 10,000,000 | – | 21.0 ± 1.0 |" in table
    assert "| pong-3 | 99 | – | – |" in table
    assert picture.stat().st_size > 10_000
