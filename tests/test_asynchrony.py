"""The study of how learning depends on the number of workers: its simulation and its table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from a3c.config.command_line import parse_config
from a3c.errors import UserError
from a3c.plot import pictures
from a3c.run.rundir import REPOSITORY
from benchmarks import asynchrony, asynchrony_in_c, asynchrony_pictures, machine, scale_solve
from benchmarks.asynchrony import REAL, SIMULATED, Case, Row
from benchmarks.asynchrony_simulated import Simulation, VirtualPs, VirtualTime
from benchmarks.judge import Judge
from tests.clusters import agent, config, push_of, small_config

FIRST = Row(
    time="2026-11-24 20:00:00",
    commit="abc",
    machine="2 cores, some processor",
    load=1.5,
    task="cartpole",
    workers=1,
    remedy="shared",
    kind=SIMULATED,
    seed=101,
    solved=True,
    env_steps=80_000,
    staleness=0.0,
    updates=625,
    wall_s=12.5,
    cpu_s=10.0,
    collapsed=False,
    flags="",
)


def table(path: Path) -> list[Row]:
    """A small table on disk: three seeds, two remedies, both kinds; half of one isn't solved."""
    rows = [
        FIRST._replace(workers=n, seed=seed, env_steps=80_000 + 1000 * n + seed, kind=kind)
        for kind in (SIMULATED, REAL)
        for n in (1, 4, 16)
        for seed in (101, 102, 103)
    ]
    rows += [
        FIRST._replace(workers=n, remedy="every-push-a-step", env_steps=400_000, solved=False)
        for n in (1, 16)
    ]
    machine.append(path, rows)
    return rows


# --- the simulation -------------------------------------------------------------------------------


def test_workers_take_turns_in_the_order_of_virtual_time() -> None:
    clock = VirtualTime(seed=1)
    turns: list[tuple[float, int]] = []

    def life(worker: int) -> Iterator[float]:
        for _ in range(50):
            turns.append((clock.now_ms, worker))
            yield 1.0

    clock.run([life(worker) for worker in range(4)], 1.0)
    assert turns == sorted(turns)
    assert {worker for _, worker in turns} == set(range(4))
    assert turns[-1][0] == pytest.approx(50, rel=0.2)


def test_a_workers_weights_stay_the_same_while_others_push() -> None:
    settings = small_config(samples_per_step=2, envs_per_worker=1, rollout_length=1)
    player = agent(settings)
    ps = VirtualPs(player, settings)
    first = ps.pull()
    held = first.parameters.copy()
    for _ in range(4):
        ps.push(push_of(np.ones_like(held), 1))
    last = ps.pull()
    np.testing.assert_array_equal(first.parameters, held)
    assert (last.global_step, last.num_updates) == (4, 2)
    assert (last.parameters < held).all()


def stale(workers: int, **settings: object) -> float:
    usual = {
        "env_id": "CartPole-v1",
        "network": "mlp",
        "hidden_sizes": [8],
        "envs": 4,
        "rollout_length": 32,
        "shortest_rollout": 16,
        "max_env_steps": 12_000,
    }
    return Simulation(config(workers=workers, **{**usual, **settings})).run().staleness


def test_staleness_grows_with_workers_where_every_push_is_a_step_and_not_where_it_is_shared() -> (
    None
):
    alone, few, many = (
        stale(n, envs_per_worker=4, minibatches=1, samples_per_step=0) for n in (1, 4, 16)
    )
    assert alone == 0
    assert few == pytest.approx(3, abs=0.5)
    assert many == pytest.approx(15, abs=2.5)
    assert stale(4) < 2
    assert 1 < stale(16) < 2.5


def test_the_same_seed_gives_the_same_simulated_run() -> None:
    settings = config(
        env_id="CartPole-v1", network="mlp", hidden_sizes=[8], workers=3, max_env_steps=2000
    )
    first, second = (Simulation(settings).run() for _ in range(2))
    kept = ("env_steps", "staleness", "updates", "virtual_s", "mean_return_100")
    assert [getattr(first, name) for name in kept] == [getattr(second, name) for name in kept]


# --- the same in C --------------------------------------------------------------------------------

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
SHORT = ["--preset=pendulum", "--workers=16", "--seed=7", "--max-env-steps=4000"]


@needs_cc
def test_a_seed_determines_the_whole_run_in_c() -> None:
    first, second = (asynchrony_in_c.simulated(SHORT) for _ in range(2))
    kept = ("env_steps", "staleness", "updates", "mean_return_100")
    assert [first[name] for name in kept] == [second[name] for name in kept]
    assert 4000 <= first["env_steps"] < 4100


def test_the_program_in_c_refuses_what_it_does_not_know() -> None:
    for flags in (["--preset=memory"], ["--preset=cartpole", "--optimizer=sgd"]):
        with pytest.raises(UserError):
            asynchrony_in_c.simulated(flags)


# --- the judge ------------------------------------------------------------------------------------


def test_a_run_is_solved_by_the_mean_of_its_last_100_games() -> None:
    judge = Judge(475.0)
    assert not judge.add([20.0] * 100)
    assert not judge.add([500.0] * 94)
    assert judge.add([500.0])
    assert not judge.collapsed


def test_a_run_has_collapsed_when_it_loses_half_of_its_progress() -> None:
    never_far = Judge(100.0)
    never_far.add([0.0] * 100 + [40.0] * 100 + [0.0] * 100)
    assert not never_far.collapsed
    judge = Judge(100.0)
    judge.add([0.0] * 100 + [60.0] * 100)
    judge.add([0.0] * 49)
    assert not judge.collapsed
    judge.add([0.0] * 2)
    assert judge.collapsed


# --- the table ------------------------------------------------------------------------------------


def test_a_run_that_is_in_the_table_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = table(path)
    assert asynchrony.read(path) == rows
    known = Case(SIMULATED, "cartpole", 16, "shared", 101)
    others = [known._replace(seed=104), known._replace(workers=2), known._replace(task="memory")]
    assert asynchrony.missing([known, *others], rows) == others


def study(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.asynchrony", "--output", str(path), *flags]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )


def test_an_interrupted_study_continues(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    flags = ["--name", "short", "--tasks", "cartpole", "--workers", "2", "--at-once", "2"]
    short = ["--", "--max-env-steps", "1000"]
    first = study(path, *flags, "--seeds", "1", *short)
    assert first.returncode == 0, first.stderr
    second = study(path, *flags, "--seeds", "1-2", *short)
    assert "2 runs, of which 1 are in" in second.stdout
    rows = asynchrony.read(path)
    assert [(row.seed, row.solved, row.remedy) for row in rows] == [
        (1, False, "short"),
        (2, False, "short"),
    ]
    assert all(1000 <= row.env_steps < 1200 for row in rows)
    assert rows[0].flags == "--max-env-steps 1000"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seeds", "10-1"], "10-1 names no seeds"),
        (["--workers", "0"], "0 is no number from 1 on"),
        (["--name", "mine"], "go together"),
        (["--name", "shared", "--", "--envs", "2"], "choose another"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        asynchrony.parse(flags)
    assert left.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_remedies_are_settings_of_the_launcher() -> None:
    for name in asynchrony.REMEDIES:
        for task in asynchrony.LIMITS:
            flags = [f"--preset={task}", *asynchrony.remedy_flags(name, task, 16)]
            parse_config(flags, "launch_cluster.py", "", lambda _: None)


# --- pictures and tables --------------------------------------------------------------------------


def test_a_median_of_runs_that_were_not_solved_is_a_bound(tmp_path: Path) -> None:
    found = asynchrony_pictures.summarise(table(tmp_path / "t.csv"))
    by = {(one.kind, one.remedy, one.workers): one for one in found}
    assert str(by[SIMULATED, "every-push-a-step", 16]) == "> 400k"
    shared = by[SIMULATED, "shared", 16]
    assert (shared.median, shared.low, shared.high) == (96_102, 96_101, 96_103)
    assert (shared.runs, shared.solved, str(shared)) == (3, 3, "96k")


def test_tables_give_the_ratio_to_one_worker(tmp_path: Path) -> None:
    found = asynchrony_pictures.summarise(table(tmp_path / "t.csv"))
    lines = asynchrony_pictures.by_workers(found, "shared", SIMULATED)
    assert lines[0] == "| task | 1 worker | 4 workers | 16 workers |"
    assert lines[2] == ("| cartpole | 81k (3 of 3) | 84k (1.04 ×, 3 of 3) | 96k (1.18 ×, 3 of 3) |")


def test_runs_in_c_count_instead_of_those_in_python_and_tell_no_costs(tmp_path: Path) -> None:
    rows = table(tmp_path / "t.csv")
    faster = [
        FIRST._replace(workers=n, env_steps=50_000 * n, kind=asynchrony.IN_C, cpu_s=0.0)
        for n in (1, 4)
    ]
    kept = asynchrony.best([*rows, *faster])
    assert [row for row in kept if row.remedy == "shared" and row.kind == SIMULATED] == []
    assert [row for row in rows if row.remedy != "shared" or row.kind == REAL] == kept[
        : -len(faster)
    ]
    assert scale_solve.factors([*rows, *faster]) == {1: 1.0, 4: 4.0}
    paper = asynchrony_pictures.projected(asynchrony_pictures.summarise([*rows, *faster]))
    assert [(one.workers, one.env_steps) for one in paper] == [(1, 50_000), (4, 200_000)]
    before = asynchrony_pictures.projected(asynchrony_pictures.summarise(rows))
    assert paper[0].env_steps_per_s == before[0].env_steps_per_s


def test_both_pictures_are_drawn_from_a_small_table(tmp_path: Path) -> None:
    found = asynchrony_pictures.summarise(table(tmp_path / "t.csv"))
    paper = asynchrony_pictures.projected(found)
    assert [one.workers for one in paper] == [1, 4, 16]
    assert paper[0].wall_s > paper[1].wall_s
    assert [one.limit for one in paper] == ["workers", "workers", "ps"]
    for name, figure in (
        ("learning", asynchrony_pictures.learning(found)),
        ("times", asynchrony_pictures.times(paper)),
    ):
        assert pictures.save(figure, tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_page_has_a_place_for_its_tables_and_keeps_the_rest() -> None:
    page = "a\n<!-- table: x, y -->\n\nold\n\n<!-- end -->\nb\n<!-- table: z -->\n<!-- end -->\n"
    filled = machine.filled(page, {"x, y": ["| new |"], "unknown": ["| no |"]})
    assert filled == page.replace("old", "| new |")
    assert machine.filled(filled, {"x, y": ["| new |"]}) == filled
