"""evaluate.py on real checkpoints: scores, videos, following a run, and keeping its best."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.spaces import Box, Discrete
from matplotlib import image

import envs
import evaluate
import model
import plot
from a3c import config as settings
from a3c.env.environments import make_vec
from a3c.play import following, locate
from a3c.play.playground import EvaluationSetup, confirm, summarise
from a3c.process import heartbeat
from a3c.run import checkpoint, rundir
from a3c.run.metrics import Episode
from a3c.run.rows import read_rows
from a3c.run.rundir import RunDir
from tests import Log, Patch, clusters, ended, not_none, snapshots, videos
from tests.clusters import small_config, untrained
from tests.fake_runs import configure, manifest_of
from tests.runs import REPOSITORY, call, call_script, launcher, line_of, script, started, wait_until
from tests.snapshots import write_values
from tests.test_tmux_run import OF_OTHERS
from tests.videos import HEADLESS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CartPole run with a low goal that has ended, with an evaluator and its window."""
    path = tmp_path_factory.mktemp("runs") / "run"
    command = launcher("--env-id", "CartPole-v1", "--workers", "1", "--run-dir", str(path))
    command += ["--stop-at-return", "20", "--checkpoint-interval", "1", "--render"]
    # Learning is slow, or on a busy machine all games of the solved agent could have 500 steps.
    command += ["--evaluation-episodes", "3", "--learning-rate", "1e-4"]
    done = call(*command, check=True, timeout=300, env=HEADLESS)
    (path / "said").write_text(done.stderr)
    return path


@pytest.fixture(scope="module")
def atari(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, learned = tmp_path_factory.mktemp("atari"), {"episodic_life": True, "reward_clip": 1.0}
    untrained(folder, env_id="ALE/Breakout-v5", max_episode_steps=150, **learned)
    return folder / "7"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: Patch) -> Iterator[None]:
    """Commands that are called in this process change neither its environment nor its signals."""
    monkeypatch.setattr(evaluate, "leave_on_signals", lambda: None)
    with mock.patch.dict(os.environ):
        yield


def result(*arguments: str) -> dict[str, Any]:
    """What `evaluate.py --json` prints, in this process: it has imported TensorFlow already."""
    return json.loads(ended(0, evaluate.main, *arguments, "--json").out)


def test_the_same_seed_gives_the_same_games_and_another_does_not(trained: Path) -> None:
    first, again, other = (
        result(str(trained), "--episodes", "5", "--seed", seed) for seed in ("3", "3", "4")
    )
    assert first["returns"] == again["returns"] != other["returns"]
    assert first["episodes"] == len(first["returns"]) == 5
    assert first["min"] <= first["ci95"][0] <= first["mean"] <= first["ci95"][1] <= first["max"]


def test_what_is_printed_at_import_stays_out_of_the_scores(monkeypatch: Patch) -> None:
    make = evaluate.evaluation_setup
    chatty = mock.Mock(side_effect=lambda *given: (sys.stdout.write("hello"), make(*given))[1])
    monkeypatch.setattr(evaluate, "evaluation_setup", chatty)
    assert result("zoo/cartpole", "--episodes", "1")["episodes"] == 1


class Luck(gymnasium.Env[Any, Any]):
    """The reward of a game's only step is drawn from the global generators."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, _: Any) -> Any:
        reward = random.gauss(0.0, 1.0) + np.random.random()
        return np.zeros(2, np.float32), reward, True, False, {}


def test_a_seed_settles_also_what_is_drawn_from_global_generators(tmp_path: Path) -> None:
    with mock.patch.dict(gymnasium.registry):
        gymnasium.register("Luck-v0", Luck)  # type: ignore[arg-type]
        config = untrained(tmp_path, env_id="Luck-v0").config
        setups = [EvaluationSetup(config, envs.make, model.build, 1, block=at) for at in (7, 7, 8)]
        first, again, other = (setup.play(tmp_path / "7", 3) for setup in setups)
    assert first == again != other


class Single(Luck):
    """Only one can exist in a process, as in stable-retro."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}  # noqa: RUF012
    exists = False

    def __init__(self, render_mode: str | None = None) -> None:
        assert not Single.exists
        Single.exists, self.render_mode = True, render_mode

    def render(self) -> Any:
        return np.zeros((32, 32, 3), np.uint8)

    def close(self) -> None:
        Single.exists = False


def test_one_copy_at_a_time_plays_where_a_worker_has_one(tmp_path: Path) -> None:
    with mock.patch.dict(gymnasium.registry):
        gymnasium.register("Single-v0", Single)  # type: ignore[arg-type]
        untrained(tmp_path, env_id="Single-v0", envs_per_worker=1)
        film = ["--record", str(tmp_path / "film.gif")]
        assert len(result(str(tmp_path / "7"), "--episodes", "3", *film)["returns"]) == 3
    assert (tmp_path / "film.gif").exists()


def test_the_confirming_games_can_be_played_again(trained: Path) -> None:
    """The chief's fork plays the same games with the same weights as another process does."""
    path = [*checkpoint.by_step(trained / "checkpoints").values()][-1]
    played = confirm(path, 3, rundir.read_config(RunDir(trained)), envs.make, model.build)
    assert checkpoint.verify(path).evaluation == json.loads(json.dumps(played))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert not (trained / "checkpoints" / "candidate").exists()


HANGING = """
import sys, time
from pathlib import Path
import envs, model
from a3c.play.playground import confirm
from a3c.run import rundir

def make(*arguments):
    made = envs.make(*arguments)
    step = made.step
    made.step = lambda actions: (time.sleep(0.01), step(actions), hang())[1]
    return made

def hang(steps=[]):
    steps.append(0)
    print(len(steps), flush=True)
    time.sleep(600 if len(steps) == 20 else 0)

path = Path(sys.argv[1])
config = rundir.read_config(rundir.RunDir(path.parents[1])).with_cluster(heartbeat_timeout_s=1.5)
confirm(path, 3, config, make, model.build)
"""


def test_a_confirming_game_that_hangs_ends_its_process(trained: Path) -> None:
    path = [*checkpoint.by_step(trained / "checkpoints").values()][-1]
    done = call(sys.executable, "-c", HANGING, str(path), cwd=REPOSITORY)
    assert done.returncode == -signal.SIGALRM
    assert done.stdout.split()[-1] == "20"


def test_actions_are_greedy_as_the_run_says_unless_asked_otherwise() -> None:
    for configured, flags in ((True, []), (True, ["--no-greedy"]), (False, ["--greedy"])):
        config = configure(evaluation_greedy=configured)
        setup = evaluate.evaluation_setup(config, evaluate.parse(flags))
        assert setup.greedy == (flags != ["--no-greedy"])
    assert evaluate.parse(["zoo/cartpole", "--record"]).record == Path("videos")


def test_an_agent_that_only_acts_samples_the_same_actions() -> None:
    """Else games that confirmed a run would differ from those of a training agent's weights."""
    observed, state, starts = np.ones((64, 3), np.float32), np.zeros((64, 0)), np.ones(64, bool)
    only_acting, learning = (clusters.agent(small_config(), learns=way) for way in (False, True))
    for _ in range(3):
        first, second = (agent.act(observed, state, starts) for agent in (only_acting, learning))
        np.testing.assert_array_equal(first.actions, second.actions)
    assert len(set(first.actions.tolist())) == 2


def test_scores_are_raw_and_a_video_shows_a_game_at_its_speed(atari: Path, tmp_path: Path) -> None:
    arguments = ("--episodes", "2", "--json", "--record", str(tmp_path), "--seconds", "3")
    environment = {**os.environ, "TF_CONFIG": OF_OTHERS}
    done = call_script("evaluate.py", str(atari), *arguments, env=environment, check=True)
    found = json.loads(done.stdout)
    (path,) = tmp_path.iterdir()
    for line in done.stderr.splitlines():
        assert line.startswith(("played ", "recording: ")) or line == f"video: {path}", done.stderr
    # Lives end episodes for learning only: with them a game would end far earlier.
    assert found["lengths"] == [150, 150] or min(found["lengths"]) > 100
    assert all(score == int(score) >= 0 for score in found["returns"])
    assert path.name.startswith("breakout-step-")
    video = videos.read(path)
    assert video.fps == 15.0
    assert len(video.pictures) == pytest.approx(45, abs=4)
    height, width = video.pictures.shape[1:3]
    assert width > height > 200
    assert len(np.unique(video.pictures[20])) > 8


def test_each_checkpoint_that_may_solve_a_run_plays_games_of_its_own(tmp_path: Path) -> None:
    config = configure(env_id="CartPole-v1", evaluation_greedy=True)
    untrained(tmp_path, env_id="CartPole-v1")
    values = checkpoint.load_variables(tmp_path / "7")
    found: list[dict[str, Any]] = []
    for step in (7, 8, 7):
        path = write_values(tmp_path / str(len(found)), values, manifest_of(config, step))
        found.append(confirm(path, 5, config, envs.make, model.build))
    assert found[0]["seed"] != found[1]["seed"]
    assert found[0]["mean"] != found[1]["mean"]
    assert found[0] == found[2]


@pytest.mark.parametrize(("limit", "length"), [(100, 200), (None, 200), (300, 300)])
def test_games_are_as_long_as_in_training_or_longer(
    tmp_path: Path, limit: int | None, length: int
) -> None:
    settings: dict[str, Any] = {"env_id": "Pendulum-v1", "max_episode_steps": limit}
    untrained(tmp_path, **settings)
    scores = confirm(tmp_path / "7", 1, configure(**settings), envs.make, model.build)
    assert scores["mean_length"] == length


def test_filters_and_saliency_are_drawn(atari: Path, tmp_path: Path) -> None:
    looks = ("--what", "filters", "saliency", "--output", str(tmp_path))
    done = call_script("plot.py", str(atari), *looks, env={**os.environ, "TF_CONFIG": OF_OTHERS})
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("filters", "saliency"):
        pixels = image.imread(tmp_path / f"{name}.png")
        assert pixels.shape[1] == 1200
        assert float(pixels.std()) > 0.05


def test_a_folder_of_videos_whose_name_is_too_long_is_refused() -> None:
    line = ended(2, evaluate.main, "zoo/cartpole", "--record", "x" * 300).line
    assert "File name too long: give a folder" in line


def test_for_vectors_saliency_is_refused(trained: Path, tmp_path: Path) -> None:
    looks = ["--what", "filters", "saliency", "--output", str(tmp_path)]
    said = ended(2, plot.main, str(trained), *looks)
    assert said.out == f"{tmp_path / 'filters.png'}\n"
    assert "saliency is of images" in said.line
    assert ended(2, plot.main, str(trained), str(trained), "--what", "filters").line


def test_the_evaluator_kept_the_best_where_evaluate_finds_it(trained: Path) -> None:
    rows = read_rows(RunDir(trained).metrics("evaluator-0"))
    assert rows
    last = [*checkpoint.by_step(trained / "checkpoints").values()][-1]
    assert rows[-1]["env_steps"] == int(last.name)
    best = max(rows, key=lambda row: row["evaluation/mean"])
    (kept,) = (trained / "best").iterdir()
    assert checkpoint.verify(kept).step == best["env_steps"] == int(kept.name)
    found = result(str(trained), "--which", "best", "--episodes", "2")
    assert found["checkpoint"] == str(kept)
    assert found["best_by"].startswith("mean return of the evaluator's 3 games, ")
    assert result(str(kept), "--episodes", "2")["returns"] == found["returns"]


def test_a_solved_run_names_its_video_and_its_window_worked(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["solved"]
    path = Path(summary["video"])
    assert f"-step-{summary['env_steps']}-" in path.name
    video = videos.read(path)
    assert video.fps == 50.0
    score = int(path.stem.rpartition("-")[2])  # a point a step
    assert len(video.pictures) == score + 50  # the last one stays for a second
    said = (trained / "said").read_text()
    assert str(path) in said
    assert summary["best"]["path"] in said
    # That the evaluator's window could not be opened, or failed, would have been said.
    log = RunDir(trained).log("evaluator-0").read_text()
    assert "env step" in log
    assert "window" not in log
    assert "Error" not in log


def end_as(path: Path, reason: str) -> None:
    """Give the newest checkpoint of a run another reason."""
    snapshots.rewrite([*checkpoint.by_step(path / "checkpoints").values()][-1], reason=reason)


@pytest.fixture
def follower(trained: Path, path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """An evaluator that has played the last checkpoint of a run that isn't over; its run."""
    shutil.copytree(trained, path)
    shutil.rmtree(path / "best")
    end_as(path, "stop")
    command = script("evaluate.py", str(path), "--follow", "--episodes", "1")
    environment = {**os.environ, heartbeat.VARIABLE: f"{path}.heartbeat"}  # of a keeper
    with started(command, env=environment) as (evaluator,):
        assert "env step" in line_of(evaluator.stderr)
        time.sleep(2.0)
        assert evaluator.poll() is None
        yield evaluator, path


def test_the_evaluator_ends_when_weights_it_has_played_are_confirmed(follower: Any) -> None:
    """A resumed run may be solved by the weights it began with: a checkpoint with no new step."""
    evaluator, path = follower
    end_as(path, "solved")
    assert evaluator.wait(timeout=100) == 0


def test_a_run_with_a_new_goal_is_not_over_for_its_evaluator(trained: Path, path: Path) -> None:
    """With Docker Compose the evaluator may start before the chief writes the new settings."""
    shutil.copytree(trained, path)
    run = RunDir(path)
    setup = EvaluationSetup(rundir.read_config(run), envs.make, model.build, 1)
    evaluator = following.Evaluator(run, setup, episodes=1, watch=False)
    videos = len([*run.videos.iterdir()])
    settings = json.loads(run.config.read_text())
    settings["config"]["run"]["stop_at_return"] = None
    run.config.write_text(json.dumps(settings))
    assert not evaluator._evaluate_newest()
    assert len([*run.videos.iterdir()]) == videos


def test_a_signal_ends_the_evaluator_which_has_kept_the_best(follower: Any) -> None:
    evaluator, path = follower
    evaluator.send_signal(signal.SIGTERM)
    assert evaluator.wait(timeout=60) == 128 + signal.SIGTERM
    assert evaluator.stderr.read() == ""
    (kept,) = (path / "best").iterdir()
    rows = read_rows(RunDir(path).metrics("evaluator-0"))
    assert checkpoint.verify(kept).step == rows[-1]["env_steps"]


def test_a_best_is_kept_before_its_score(trained: Path, path: Path, monkeypatch: Patch) -> None:
    """A recorded checkpoint isn't played again, so a signal in between would lose the best."""
    shutil.copytree(trained, path, ignore=shutil.ignore_patterns("best", "metrics", "events"))
    monkeypatch.setattr(locate, "keep_best", mock.Mock(side_effect=SystemExit))
    run = RunDir(path)
    setup = EvaluationSetup(rundir.read_config(run), envs.make, model.build, 1)
    with pytest.raises(SystemExit):
        following.Evaluator(run, setup, episodes=1, watch=False).follow()
    assert [row for row in read_rows(run.metrics("evaluator-0")) if "evaluation/mean" in row] == []


def test_ctrl_c_ends_watching_and_reports_whole_games(trained: Path) -> None:
    command = script("evaluate.py", str(trained), "--watch", "--json", "--episodes", "1000")

    def open_window() -> psutil.Process | None:
        for child in psutil.Process(watching.pid).children():
            with contextlib.suppress(psutil.Error):
                if "a3c.play.window" in child.cmdline():
                    return child
        return None

    with started(command, env=HEADLESS) as (watching,):
        window = wait_until(open_window, "a window")
        time.sleep(1.5)
        watching.send_signal(signal.SIGINT)
        said, complaints = watching.communicate(timeout=60)
    assert (watching.returncode, complaints) == (128 + signal.SIGINT, "")
    if said:  # of games that were over by then
        assert sum(json.loads(said)["lengths"]) < 50 * 60
    window.wait(timeout=10)


@pytest.mark.parametrize("where", ["make", "reset", "step"])
def test_an_environments_error_is_one_line(where: str, monkeypatch: Patch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no camera")

    def broken(*arguments: Any) -> Any:
        made = make_vec("CartPole-v1", arguments[1], arguments[3])
        monkeypatch.setattr(made, where, fail)
        return made

    monkeypatch.setattr(envs, "make", fail if where == "make" else broken)
    line = ended(1, evaluate.main, "zoo/cartpole", "--episodes", "1").line
    assert line.startswith("evaluate.py: the environment raised an error: tests/test_evaluate.py:")
    assert line.endswith(": OSError: no camera")


def test_scores_outlive_an_environment_that_fails_to_close(monkeypatch: Patch, caplog: Log) -> None:
    def broken(*arguments: Any) -> Any:
        made = make_vec("CartPole-v1", arguments[1], arguments[3])
        monkeypatch.setattr(made, "close", mock.Mock(side_effect=ValueError("no handle")))
        return made

    monkeypatch.setattr(envs, "make", broken)
    scores = ended(0, evaluate.main, "zoo/cartpole", "--episodes", "2", "--json").out
    assert len(json.loads(scores)["returns"]) == 2
    assert "closing the environments failed" in caplog.text


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: Patch) -> RunDir:
    """A run that was stopped after its first checkpoint, whose evaluator never waits."""
    monkeypatch.setattr(following, "time", mock.Mock(sleep=mock.Mock(side_effect=AssertionError)))
    run = RunDir(tmp_path)
    untrained(run.checkpoints, env_id="CartPole-v1")
    (run.path / "processes").mkdir()
    run.config.write_text(json.dumps({"config": settings.to_dict(configure(env_id="CartPole-v1"))}))
    return run


def test_following_a_stopped_run_by_hand_plays_what_there_is(stopped: RunDir, caplog: Log) -> None:
    caplog.set_level("INFO")
    assert evaluate.main([str(stopped.path), "--follow", "--episodes", "1"]) == 0
    assert caplog.messages[-1] == f"run {stopped.path} is stopped: no more checkpoints"
    assert [row["env_steps"] for row in read_rows(stopped.metrics("evaluator-0"))][-1] == 7


def test_a_checkpoint_whose_game_has_no_finite_return_has_no_score(
    stopped: RunDir, monkeypatch: Patch, caplog: Log
) -> None:
    def poison(*arguments: Any) -> Any:
        made = make_vec("CartPole-v1", arguments[1], arguments[3])
        step = made.step

        def nan(actions: Any) -> Any:
            observations, rewards, *rest = step(actions)
            return observations, rewards * np.nan, *rest

        monkeypatch.setattr(made, "step", nan)
        return made

    monkeypatch.setattr(envs, "make", poison)
    caplog.set_level("INFO")
    assert evaluate.main([str(stopped.path), "--follow", "--episodes", "1"]) == 0
    assert re.search(r"env step 7 has no score: a game of .* a return of nan: fix", caplog.text)
    assert caplog.messages[-1].endswith("is stopped: no more checkpoints")
    assert read_rows(stopped.metrics("evaluator-0")) == []


def test_a_second_evaluator_waits_or_leaves(stopped: RunDir, tmp_path: Path) -> None:
    beats, path = tmp_path / "heartbeat", stopped.path / "processes" / ".evaluator"
    with path.open("w") as first, path.open("w") as another:
        assert rundir.lock(first.fileno())
        line = ended(2, evaluate.main, str(stopped.path), "--follow").line
        assert "has an evaluator already: leave it out, and give --watch to see games" in line

        def let_go(_: float) -> None:
            assert beats.exists()
            first.close()

        with (
            mock.patch.dict(os.environ, {heartbeat.VARIABLE: str(beats)}),
            mock.patch("evaluate.time.sleep", let_go),
            evaluate.only_evaluator(stopped),
        ):
            assert not rundir.lock(another.fileno())


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    return RunDir(tmp_path)


def kept(run: RunDir, step: int, score: float) -> locate.Best:
    manifest = checkpoint.verify(snapshots.write(run.checkpoints, step))
    values = {"policy/weights": np.full((2, 3), score, np.float32), "global_step": np.array(step)}
    return locate.keep_best(run, manifest, values, summarise([Episode(score, 5)]))


def test_only_the_newest_best_stays_and_is_not_pruned(run: RunDir) -> None:
    kept(run, 100, 7.0)
    kept(run, 200, 8.0)
    snapshots.write(run.checkpoints, 300)
    checkpoint.prune(run.checkpoints, keep=1)
    path = run.path / "best" / "200"
    assert (checkpoint.verify(path).step, [*path.parent.iterdir()]) == (200, [path])
    assert checkpoint.load_variables(path)["policy/weights"].tolist() == [[8.0] * 3] * 2
    assert locate.find_best(run) == (path, 200, 8.0, 1)


def test_a_killed_evaluator_leaves_a_complete_best(run: RunDir, monkeypatch: Patch) -> None:
    """Whether it was killed while it wrote, between two renames, or while it removed."""
    kept(run, 100, 7.0).path.rename(run.path / "best" / ".replaced-100")
    shutil.copytree(run.path / "best" / ".replaced-100", run.path / "best" / ".writing-100-1")
    found = not_none(locate.find_best(run))
    assert (found.step, checkpoint.verify(found.path).step) == (100, 100)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    best = kept(run, 200, 8.0)
    assert locate.find_best(run) == best
    monkeypatch.undo()
    kept(run, 300, 9.0)
    assert [path.name for path in (run.path / "best").iterdir()] == ["300"]


def test_a_score_that_is_no_number_of_games_is_not_the_best(run: RunDir) -> None:
    score = kept(run, 100, 7.0).path / locate.SCORE
    score.write_text(score.read_text().replace('"episodes": 1', '"episodes": Infinity'))
    assert locate.find_best(run) is None


def test_which_best_finds_the_evaluators_best(run: RunDir) -> None:
    snapshots.write(run.checkpoints, 300, mean_return_100=99.0)
    found = locate.find_checkpoint(str(run.path), "best")
    assert found.manifest.step == 300
    assert found.best_by == "mean return of the last 100 games in training, 99.00"
    kept(run, 100, 7.0)
    found = locate.find_checkpoint(str(run.path), "best")
    assert found.best_by == "mean return of the evaluator's 1 game, 7.00"
    assert found.path == run.path / "best" / "100"
    assert locate.find_checkpoint(str(found.path)).manifest.step == 100
