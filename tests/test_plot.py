"""plot.py: the pictures of runs, and its messages where data are missing."""

import json
import os
import re
import subprocess
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from matplotlib.axes import Axes

from a3c import config as settings
from a3c.plot import charts, curves, pictures
from a3c.run.metrics import bootstrap_interval
from a3c.run.rows import read_table
from a3c.watch.snapshot import Curve
from plot import main
from tests import Patch, ended, not_none, refused
from tests.clusters import config
from tests.fake_runs import FakeRun
from tests.runs import call_script


def fake_run(path: Path, *, seed: int = 1, games: int = 300, learning_rate: float = 1e-3) -> Path:
    """A run directory with a return that rises from 0 to 100."""
    chosen = {"seed": seed, "learning_rate": learning_rate, "stop_at_return": 90.0}
    made = FakeRun(path, config(env_id="CartPole-v1", **chosen))
    rng = np.random.default_rng(seed)
    fixed = {f"time/{name}": 0.2 for name in ("act", "env", "learn", "wait", "exchange", "other")}
    fixed |= {"cluster/env_steps_per_s": 1000.0, "worker/env_steps_per_s": 500.0}
    fixed |= {"loss/policy": 0.1, "loss/entropy": 0.6}
    fixed |= {"train/gradient_norm": 0.4, "train/learning_rate": 1e-3}
    rows, episodes = [], []
    for i in range(games):
        place = {"time": float(i), "env_steps": 100 * (i + 1)}
        score = 100 * i / games + rng.normal()
        episodes.append({**place, "worker": i % 2, "return": score})
        row = place | fixed | {"wall_s": i / 10, "cluster/mean_return_100": score}
        row |= {"loss/value": 1.0 / (i + 1), "loss/explained_variance": i / games}
        rows.append(row | {"train/staleness": float(i % 3)})
    for name, table in (("episodes", episodes), ("worker-0", rows), ("worker-1", rows)):
        made.rows(name, table)
    return path


def is_drawn(path: Path) -> bool:
    pixels = image.imread(path)
    return pixels.shape[:2] == (700, 1200) and float(pixels.std()) > 0.05


def test_pictures_with_data_are_drawn_at_the_printed_paths(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    said = ended(0, main, str(run)).out.splitlines()
    names = ["return", "losses", "throughput", "staleness"]
    assert said == [str(run / "plots" / f"{name}.png") for name in names]
    assert all(is_drawn(Path(line)) for line in said)
    (run / "metrics" / "episodes.jsonl").unlink()
    missing = ended(0, main, str(run))
    assert "episodes.jsonl" in missing.err
    assert missing.out.splitlines() == said[1:]
    assert ended(2, main, str(run), "--what", "return").line


def test_a_picture_of_returns_reads_only_the_tables_that_it_needs(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    run, read = fake_run(tmp_path / "run", games=9), list[str]()

    def noted(file: Path) -> Any:
        read.append(file.stem)
        return read_table(file)

    monkeypatch.setattr(curves, "read_table", noted)
    ended(0, main, str(run), "--what", "return")
    assert read == ["episodes", "worker-0"]
    (run / "metrics" / "worker-0.jsonl").unlink()  # then the time is that of all rows
    ended(0, main, str(run), "--what", "return")
    assert read[2:] == ["episodes", "worker-1"]


def test_any_name_of_a_run_is_drawn_as_it_is(tmp_path: Path) -> None:
    names = ("_a", r"x$\foo$", "日", os.fsdecode(b"a\xff"))
    runs = [fake_run(tmp_path / name, games=9) for name in names]
    flags = ("--what", "throughput", "--format", "svg", "--output", str(tmp_path))
    assert main([*map(str, runs), *flags]) == 0
    text = (tmp_path / "throughput.svg").read_text()
    assert all(text.count(f"<!-- {name} -->") == 2 for name in (" _a", r"x$\foo$", "日", "a?"))


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / part, games=9) for part in ("a/x/0", "b/x/0", "b/1")]
    found = [history.name for history in curves.load_all([*map(str, runs), str(runs[0])])]
    assert found == ["a/x/0", "b/x/0", f"{tmp_path.name}/b/1"]
    assert [history.name for history in curves.load_all([str(runs[0])])] == ["0"]


def test_pictures_need_no_backend_that_a_notebook_names(tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "of-another-python"}
    run = str(fake_run(tmp_path / "run"))
    call_script("plot.py", run, "--what", "return", env=environment, check=True)
    assert is_drawn(tmp_path / "run" / "plots" / "return.png")


def test_numbers_of_info_have_a_picture_where_there_are_any(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", games=30)
    assert "train with --info-metrics NAME" in ended(2, main, str(run), "--what", "info").line
    for file in (run / "metrics").glob("worker-*"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for number, row in enumerate(rows):
            row |= {"info/coins": number / 10} | ({"info/a/b": 1.0} if number % 7 == 0 else {})
        file.write_text("\n".join([*map(json.dumps, rows), ""]))
    assert ended(0, main, str(run), "--format", "svg").out.endswith("info.svg\n")
    text = (run / "plots" / "info.svg").read_text()
    assert all(f"<!-- {label} -->" in text for label in ("coins", "a/b", "mean of 2 workers"))


def test_panels_of_info_show_each_run_and_have_numbers_below(tmp_path: Path) -> None:
    found = []
    for names in ("ab", "cd"):
        found.append(curves.load(fake_run(tmp_path / names, games=30)))
        for rows in found[-1].tables.values():
            for row in rows:
                row |= dict.fromkeys([f"info/{name}" for name in names], 1.0)
    panels = charts.figure("info", found).axes[:4]
    assert [len(axes.get_lines()) for axes in panels] == [1] * 4
    shown = [axes.xaxis.get_tick_params()["labelbottom"] for axes in panels]
    assert shown == [False, True, True, True]


def test_pictures_compare_groups_of_seeds_by_the_chosen_average(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path / f"{rate}-{seed}", seed=seed, learning_rate=rate, games=20)
        for rate in (1e-3, 1e-4)
        for seed in (1, 2, 3)
    ]
    flags = ("--format", "svg", "--average", "iqm", "--x", "wall", "--output", str(tmp_path))
    assert main([*map(str, runs), *flags]) == 0
    for name in ("losses", "staleness"):
        assert "<!-- learning rate 0.0001 -->" in (tmp_path / f"{name}.svg").read_text()
    text = (tmp_path / "return.svg").read_text()  # each text is a comment above its shapes
    for label in ("learning rate 0.0001 (3 seeds)", "wall time (s)"):
        assert f"<!-- {label} -->" in text
    assert "interquartile mean of seeds, with its 95 % interval" in text
    assert "<!-- env steps -->" not in text


def test_curves_of_a_resumed_run_leave_out_rolled_back_steps(tmp_path: Path) -> None:
    """Every process reached 20,000 and was rolled back to 15,000."""
    path = fake_run(tmp_path / "run", games=200)
    for file in (path / "metrics").iterdir():
        old = file.read_text().splitlines()
        back = {"time": 1e3, "env_steps": 15_000, "event": "attached"}
        again = [json.loads(line) | {"time": 2e3, "return": 7.0} for line in old[150:180]]
        file.write_text("\n".join([*old, json.dumps(back), *map(json.dumps, again), ""]))
    history = curves.load(path)
    assert sorted(history.tables) == ["episodes", "worker-0", "worker-1"]
    for rows in history.tables.values():
        steps = curves.column(rows, "env_steps")
        assert np.all(np.diff(steps) > 0)
        assert steps[-1] == 18_000
        assert np.all((curves.column(rows, "time") >= 2e3) == (steps > 15_000))
    curve = Curve(path / "metrics" / "worker-0.jsonl")  # the dashboard's
    assert [point.env_steps for point in curve.points] == steps.tolist()


def test_means_look_back_bins_average_and_curves_end_with_their_data() -> None:
    points = curves.Series(np.array([0.0, 1.0, 9.0, 10.0]), np.array([2.0, 4.0, 6.0, 8.0]))
    assert curves.smooth(points, 2).y.tolist() == [2.0, 3.0, 5.0, 7.0]
    assert curves.smooth(points, 10**30).y.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert curves.bin_means(points, 2).y.tolist() == [3.0, 7.0]
    late = curves.Series(np.array([5.0, 15.0]), np.array([0.0, 10.0]))
    # Means of [0, 5) and [5, 10], then late alone.
    over = not_none(curves.across_workers([points, late], 2))
    np.testing.assert_array_equal(over, [[0.5, 15.0], [3.0, 10.0], [3.0, 10.0], [3.0, 10.0]])


@pytest.mark.parametrize("window", [1, 2, 100, 699, 700, 10**30])
def test_an_extreme_value_is_in_no_later_mean(window: int) -> None:
    values = np.random.default_rng(3).normal(size=700)
    values[350] = 1e30
    points = curves.Series(np.arange(700.0), values)
    means = [values[max(0, end - window) : end].mean() for end in range(1, 701)]
    np.testing.assert_allclose(curves.smooth(points, window).y, means, rtol=1e-9, atol=1e-12)


def test_a_band_over_seeds_ends_where_the_first_seed_ends() -> None:
    long = curves.Series(np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    short = curves.Series(np.array([0.0, 5.0]), np.array([2.0, 7.0]))
    over = curves.across_seeds([long, short], 11)
    assert over.x[-1] == 5.0
    np.testing.assert_allclose(over.mean, over.x + 1.0)
    np.testing.assert_allclose((over.low, over.high), (over.x, over.x + 2.0))


@pytest.mark.parametrize("runs", [1, 2, 4, 5, 7, 10])
def test_the_interquartile_mean_is_that_of_rliable_for_one_task(runs: int) -> None:
    """rliable trims `scipy.stats.trim_mean(scores, 0.25)`: int(0.25 n) scores at each end."""
    scores = np.random.default_rng(runs).normal(0.0, 5.0, (runs, 1))
    ranked, cut = sorted(scores[:, 0]), int(0.25 * runs)
    kept = [score for place, score in enumerate(ranked) if cut <= place < runs - cut]
    np.testing.assert_allclose(curves.iqm(scores), [sum(kept) / len(kept)])


@pytest.mark.parametrize("average", curves.AVERAGES.values(), ids=curves.AVERAGES)
def test_an_interval_covers_what_other_samples_of_runs_give(average: Any) -> None:
    rng = np.random.default_rng(5)
    hits = []
    for _ in range(40):
        low, high = bootstrap_interval(rng.normal(7.0, 2.0, (12, 3)), average)
        hits += list((low <= 7.0) & (high >= 7.0))
    assert 0.8 < np.mean(hits) < 1.0
    np.testing.assert_array_equal(bootstrap_interval(np.full((5, 1), 3.0), average), [[3.0], [3.0]])


def test_runs_that_differ_in_their_seed_only_are_one_group() -> None:
    a, b, c = (settings.to_dict(config(seed=s, gamma=g)) for s, g in ((1, 0.9), (2, 0.9), (1, 0.8)))

    def grouped(*configs: dict[str, Any] | None) -> list[tuple[str, str]]:
        runs = [curves.History(Path(f"run-{i}"), made, {}) for i, made in enumerate(configs)]
        groups = curves.group(runs)
        return [(label, " ".join(run.name for run in members)) for label, members in groups]

    assert grouped(a, b, c) == [("gamma 0.9", "run-0 run-1"), ("gamma 0.8", "run-2")]
    alone = [("run-0", "run-0 run-1"), ("run-2", "run-2"), ("run-3", "run-3")]
    assert grouped(a, b, None, None) == alone
    assert grouped(a, b, {"later": {"x": 1}}, None) == alone, "of a later commit"
    other = settings.to_dict(config(env_id="Acrobot-v1", seed=2, gamma=0.9))
    tasks = [("env id ALE/Pong-v5", "run-0 run-1"), ("env id Acrobot-v1", "run-2")]
    assert grouped(a, b, other) == tasks, "scores of two tasks are not averaged"


def drawn(path: Path, metric: str, values: list[float], what: str, **settings: Any) -> Axes:
    made = FakeRun(path, config(env_id="CartPole-v1", workers=4, **settings))
    rest = {"loss/policy": 0.1}
    rows = [{"time": i, "env_steps": i + 1, **rest, metric: v} for i, v in enumerate(values)]
    made.rows("worker-0", rows)
    panels = charts.figure(what, [curves.load(path)]).axes
    return panels[list(charts.PANELS[what]).index(metric)]


def test_a_negative_entropy_is_inside_its_panel(tmp_path: Path) -> None:
    panel = drawn(tmp_path, "loss/entropy", [1.0, -2.0, -3.0], "losses")
    assert panel.get_ylim()[0] < -3.0


def test_a_run_with_one_row_is_drawn_as_points_and_its_seeds_band_is_named(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        made = FakeRun(tmp_path / f"seed-{seed}", config(env_id="CartPole-v1", seed=seed))
        row = {"loss/policy": 0.1, "cluster/env_steps_per_s": 9.0}
        made.rows("worker-0", [made.worker_row(5, 1.0) | row])
        made.rows("episodes", [{"time": 1.0, "env_steps": 5, "return": 1.0}])
        runs.append(curves.load(made.run.path))
    for what in ("return", "losses", "throughput"):
        figure = charts.figure(what, runs)
        lines = [line for axes in figure.axes for line in axes.get_lines()]
        data = [line for line in lines if np.asarray(line.get_xdata()).size == 1]
        assert data, what
        assert all(line.get_marker() == "o" for line in data), what
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert any("band" in name for name in names) == (what == "losses"), what


def test_marks_of_single_pushes_are_absent_where_the_ps_gathers(tmp_path: Path) -> None:
    for name, metric, what in (
        ("a", "train/staleness", "staleness"),
        ("b", "train/gradient_norm", "losses"),
    ):
        single = drawn(tmp_path / f"{name}0", metric, [0.1, 0.2], what, samples_per_step=0)
        assert len(single.get_lines()) == 2
        mark = float(np.max(single.get_lines()[1].get_ydata()))
        assert single.get_ylim()[1] >= mark > 0.2
        gathered = drawn(tmp_path / f"{name}1", metric, [0.1, 0.2], what)
        assert len(gathered.get_lines()) == 1


@pytest.mark.parametrize("what", ["losses", "throughput"])
def test_names_of_many_runs_leave_room_for_their_curves(tmp_path: Path, what: str) -> None:
    paths = [tmp_path / f"a-run-with-rather-a-long-name-{i:02}" for i in range(45)]
    runs = [
        curves.load(fake_run(path, games=4, learning_rate=(i + 1) / 99999, seed=i))
        for i, path in enumerate(paths)
    ]
    made = charts.figure(what, runs)
    pictures.save(made, tmp_path / "it.png")  # a collapsed layout gives a warning
    (legend,) = made.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert 12 <= len(names) <= 19
    assert re.fullmatch(r"\d\d others", names[-1])
    for kept in ("band: lowest to highest worker",) if what == "losses" else ("gradients", "other"):
        assert kept in names
    below = legend.get_window_extent().y1
    assert all(axes.get_window_extent().y0 > below for axes in made.axes)
    assert all(axes.get_window_extent().height > 60 for axes in made.axes)
    assert max(len(axes.get_yticks()) for axes in made.axes) <= 8


def test_seven_groups_are_named_and_drawn_above_the_others(tmp_path: Path) -> None:
    runs = []
    for number in range(9):
        named = {"wrapper": [{"name": "a_module_with_a_long_name:WrapperOfMine", "by": number}]}
        path = tmp_path / f"a-run-with-such-a-long-name-that-few-fit-below-the-pictures-{number}"
        made = FakeRun(path, config(env_id="x" * 70, stop_at_return=1.0, **named))
        made.rows("episodes", [{"time": 1.0, "env_steps": 5, "return": 1.0}] * 2)
        made.rows("evaluator-0", [{"time": 1.0, "env_steps": 5, "evaluation/mean": 1.0}] * 2)
        made.rows("worker-0", [made.worker_row(5, 1.0)] * 2)
        runs.append(curves.load(made.run.path))
    for what in ("return", "throughput"):
        figure = charts.figure(what, runs)
        figure.draw_without_rendering()
        assert figure.texts[0].get_window_extent().x1 <= figure.bbox.x1, "the title"
        (legend,) = figure.legends
        names = [text.get_text() for text in legend.get_texts()]
        if what == "return":
            assert "2 others" in names
        assert sum(name.startswith("a-run") for name in names) >= 7
        assert all(axes.get_window_extent().height > 60 for axes in figure.axes)
    axes = charts.figure("return", runs).axes[0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    heights = [line.get_zorder() for line in marks]
    assert min(heights[:7]) > max(heights[7:])


def test_a_goal_is_drawn_only_if_all_runs_have_it(tmp_path: Path) -> None:
    def marks(*goals: tuple[str, float | None]) -> list[str]:
        runs = []
        for number, (env_id, goal) in enumerate(goals):
            made = FakeRun(tmp_path / f"{number}", config(env_id=env_id, stop_at_return=goal))
            made.rows("episodes", [{"time": 1.0, "env_steps": 5, "return": 1.0}] * 2)
            runs.append(curves.load(made.run.path))
        labels = charts.figure("return", runs).axes[0].get_legend_handles_labels()[1]
        rmtree(tmp_path)
        return [label for label in labels if "solved" in label]

    pong = "ALE/Pong-v5", 18.0
    assert marks(pong) == marks(pong, pong) == ["solved at 18"]
    assert marks(pong, ("ALE/Pong-v5", None)) == []
    assert marks(pong, ("CartPole-v1", 18.0)) == marks(pong, ("CartPole-v1", 475.0)) == []


def test_a_run_whose_evaluator_has_no_score_yet_has_no_picture_of_returns(tmp_path: Path) -> None:
    made = FakeRun(tmp_path, config(env_id="CartPole-v1"))
    made.rows("evaluator-0", [])
    made.rows("worker-0", [{"time": 1.0, "env_steps": 5}])
    refused("has no finished game", charts.figure, "return", [curves.load(tmp_path)])

    made.rows("episodes", [{"time": 1.0, "env_steps": 5, "return": 1.0}] * 2)
    made.rows("evaluator-0", [{"time": 1.0, "env_steps": 0, "event": "attached"}])
    for number in (1, 2):
        axes = charts.figure("return", [curves.load(tmp_path)] * number).axes[0]
        assert not re.search("evaluation", str(axes.get_legend_handles_labels()[1]))


def test_pictures_before_one_without_data_are_named(tmp_path: Path) -> None:
    made = FakeRun(tmp_path / "run", config(env_id="CartPole-v1"))
    made.rows("worker-0", [{"time": 1.0, "env_steps": 5, "train/staleness": 0.5}] * 2)
    said = ended(2, main, str(made.run.path), "--what", "staleness", "info")
    assert said.out.strip().endswith("staleness.png")
    assert "there is no info/ metric" in said.err


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("cluster", "workers", "4"), ("run", "stop_at_return", "x"), ("env", "env_id", ["a"])],
)
def test_a_setting_of_another_type_is_refused(
    tmp_path: Path, section: str, name: str, value: object
) -> None:
    run = fake_run(tmp_path / "run", games=9)
    held = json.loads((run / "config.json").read_bytes())
    held["config"]["learning"]["optimizer"] = "lion"  # of a later version, and not drawn
    (run / "config.json").write_text(json.dumps(held))
    assert main([str(run)]) == 0
    held["config"][section][name] = value
    (run / "config.json").write_text(json.dumps(held))
    assert f"config.json: {name} = " in ended(2, main, str(run)).line


@pytest.mark.parametrize("held", [{"env": []}, {"env": "x"}, [], {"env": 1}])
def test_a_config_without_sections_is_refused(tmp_path: Path, held: object) -> None:
    run = fake_run(tmp_path / "run", games=9)
    (run / "config.json").write_text(json.dumps({"config": held}))
    assert "is no run's config.json" in ended(2, main, str(run)).line


def test_a_full_stdout_is_one_line(tmp_path: Path) -> None:
    streams: dict[str, Any] = {"capture_output": False, "stderr": subprocess.PIPE}
    with Path("/dev/full").open("w") as full:
        done = call_script("plot.py", str(fake_run(tmp_path / "run")), stdout=full, **streams)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "stdout can't be written (No space left on device)" in line
