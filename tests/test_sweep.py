"""Sweeps: many runs with other settings or seeds."""

import csv
import json
import math
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import launch_cluster
from a3c.config import command_line
from a3c.launch import sweep
from a3c.run import rundir
from tests import Log, Patch, ended, not_none, refused
from tests.fake_runs import FakeRun
from tests.full_disks import little_room
from tests.runs import REPOSITORY, Python, call_script, is_gone, script, started, wait_until


def sweep_of(folder: Path, text: str) -> sweep.Sweep:
    """A sweep as it is read from a file, sweep.toml in the folder."""
    (folder / "sweep.toml").write_text(text)
    return sweep.read(folder / "sweep.toml")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_lists_are_combined_and_ranges_are_drawn(tmp_path: Path) -> None:
    text = """
trials = 50
[fixed]
max_wall_time_s = "30m"
[vary]
seed = [1, 2]
learning_rate = { low = 1e-5, high = 1e-1, log = true }
epochs = { low = 1, high = 4 }
"""
    assert sweep_of(tmp_path, text).fixed == {"max_wall_time_s": 1800.0}
    settings = list(sweep_of(tmp_path, text).settings())
    assert len(settings) == 100
    assert settings == list(sweep_of(tmp_path, text).settings()), "the same each time"
    assert settings[0] == {**settings[1], "seed": 1}
    assert {values["epochs"] for values in settings} == {1, 2, 3, 4}
    many = "trials = 6000\n[vary]\nepochs = { low = 1, high = 4 }\n"
    shares = Counter(each["epochs"] for each in sweep_of(tmp_path, many).settings())
    assert all(1350 < shares[epochs] < 1650 for epochs in (1, 2, 3, 4))
    near_1 = "trials = 9\n[vary]\nadam_beta2 = {low = 0.9999, high = 0.999999}\n"
    drawn = {each["adam_beta2"] for each in sweep_of(tmp_path, near_1).settings()}
    assert (len(drawn), min(drawn) >= 0.9999, max(drawn) <= 0.999999) == (9, True, True)
    decades = [math.floor(math.log10(values["learning_rate"])) for values in settings]
    assert {decades.count(d) > 10 for d in (-5, -4, -3, -2)} == {True}


def test_a_file_unsets_what_a_preset_sets_and_no_range_ends_there(tmp_path: Path) -> None:
    text = '[fixed]\nstop_at_return = "none"\n[vary]\nratio_limit_final = ["none", 0.1]\n'
    made = sweep_of(tmp_path, text)
    assert made.fixed == {"stop_at_return": None}
    assert made.lists == {"ratio_limit_final": [None, 0.1]}
    text = '[vary]\nratio_limit_final = { low = "none", high = 0.1 }\n'
    said = "ratio_limit_final = .* is refused: give numbers, low below high"
    refused(said, sweep_of, tmp_path, text)


def test_the_example_of_the_page_is_a_sweep(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "launcher.md").read_text()
    _, _, rest = page.partition("```toml\n")
    read = sweep_of(tmp_path, rest.partition("```")[0])
    assert (len(list(read.settings())), sorted(read.ranges)) == (60, ["epochs", "learning_rate"])


def test_seeds_are_given_as_numbers_and_ranges() -> None:
    assert sweep.seeds("1,5,7-8,5") == [1, 5, 7, 8]
    for text in ("", "x", "3-1", "-1", "1-2-3"):
        refused("--seeds", sweep.seeds, text)


def test_a_folder_that_is_there_but_cannot_be_written_is_refused() -> None:
    seeds = sweep.Sweep(lists={"seed": [1]})
    refused("--output /proc: nothing can be made there", sweep.run, seeds, Path("/proc"), [], 1)


def test_a_sweep_that_was_interrupted_goes_on_and_shows_the_best_first(tmp_path: Path) -> None:
    fixed = 'preset = "cartpole"\n[fixed]\nworkers = 1\nevaluation_episodes = 2\n'
    file, folder = tmp_path / "sweep.toml", tmp_path / "out"
    file.write_text(fixed + "[vary]\nmax_env_steps = [3000, 9000]\n")
    words = ("sweep", str(file), "--output", str(folder))
    with started(script("launch_cluster.py", *words)) as (process,):
        second = folder / "001" / "metrics" / "worker-0.jsonl"
        wait_until(second.exists, "the second trial")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    first = json.loads((folder / "000" / "summary.json").read_text())
    assert (process.returncode, first["state"]) == (130, "done")
    before = (folder / "000" / "summary.json").stat().st_mtime_ns

    call_script("launch_cluster.py", *words, check=True)
    assert (folder / "000" / "summary.json").stat().st_mtime_ns == before, "it is not trained again"
    means = [float(row["mean_return"]) for row in rows(folder)]
    assert len(means) == 2
    assert means == sorted(means, reverse=True)
    assert (folder / "return.png").exists()


class Trained:
    """Stands for the launcher: notes what is trained at the same time, and how it ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.failing: tuple[str, ...] = ()
        self.mean: Callable[[sweep.Values], float] = lambda _: 5.0
        self.plays = True  # the games at the end
        self.flags: list[list[str]] = []
        self.now: set[str] = set()
        self.most = 0
        self.lock = threading.Lock()

    def __call__(self, trainer: sweep.Trainer, trial: sweep.Trial, _said: Path, **_: bool) -> int:
        with self.lock:
            self.flags.append(list(trainer._flags))
            self.now.add(trial.path.name)
            self.most = max(self.most, len(self.now))
        time.sleep(0.05)
        state = "failed" if trial.path.name in self.failing else "done"
        made = FakeRun(trial.path, trainer.wanted(trial)[0])
        summary: sweep.Values = {"solved": False, "env_steps": 10, "wall_s": 1.0}
        summary["mean_return_100"] = self.mean(trial.values)
        summary["evaluation"] = {"mean": self.mean(trial.values)} if self.plays else None
        made.run.summary.write_text(json.dumps({"state": state, **summary}))
        self.now.remove(trial.path.name)
        return 2 if state == "failed" else 0  # what was refused only after the start

    def run(self, text: str, at_once: int = 1) -> int:
        """The exit code of a sweep with this file."""
        return sweep.run(sweep_of(self.folder, text), self.out, (), at_once)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: Patch) -> Trained:
    """No trial is really trained; the table isn't shown, and this process keeps its signals."""
    made = Trained(tmp_path)
    monkeypatch.setattr(sweep.Trainer, "_launch", lambda *a, **k: made(*a, **k))
    monkeypatch.setattr(sweep, "_show", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return made


def test_trials_run_at_once_and_fail_alone(trained: Trained, caplog: Log) -> None:
    caplog.set_level("INFO")
    trained.failing = ("002",)
    vary = "[vary]\nseed = [1, 2, 3, 4, 5, 6, 7]\n"
    assert trained.run(vary, 3) == 70
    assert trained.most == 3
    assert trained.run(vary, 3) == 70
    assert "002 failed: see" in caplog.text
    assert re.search("[2-5] of 7 trials, about 5 s left", caplog.text)
    assert "6 of 7 trials" in caplog.text
    assert "6 of 7 trials, about" not in caplog.text, "the one that failed isn't tried again"
    found = rows(trained.out)
    assert [row["trial"] for row in found][-1] == "002"
    assert [row["seed"] for row in found] == ["1", "2", "4", "5", "6", "7", "3"]
    trained.failing = ()
    assert trained.run(vary, 3) == 0
    made = sweep_of(trained.folder, vary)
    with little_room(0):  # as on a full disk
        assert sweep.run(made, trained.out, (), 3) == 0
    assert "sweep.csv can't be written" in caplog.text
    what = "001 was trained with seed 2, not 9: give another"
    refused(what, trained.run, vary.replace("1, 2", "1, 9"))


def test_one_flag_trains_several_seeds(here: Path, trained: Trained, caplog: Log) -> None:
    flags = ("--env-id", "CartPole-v1", "--workers", "1")
    more = ("--seeds", "4-5", "--run-dir", "out", "--at-once", "2")
    trained.plays = False  # they are interrupted in their last games
    assert launch_cluster.main([*flags, *more]) == 0
    trained.plays = True
    assert launch_cluster.main([*flags, *more]) == 0
    assert launch_cluster.main([*flags, *more]) == 0
    assert sorted(row["seed"] for row in rows(here / "out")) == ["4", "5"]
    assert trained.flags == [list(flags)] * 4, "those that lack their last games go on once"
    assert trained.most == 2
    trained.failing = ("000",)
    assert launch_cluster.main([*flags, "--seeds", "4"]) == 70
    (folder,) = (here / "runs").iterdir()
    assert f"the same command with --run-dir runs/{folder.name} tries it again" in caplog.text


def test_seeds_share_no_folder_with_those_of_the_same_second(
    here: Path, trained: Trained, monkeypatch: Patch
) -> None:
    new_path, taken = rundir.new_path, list[Path]()

    def take(env_id: str, now: float) -> Path:
        path = new_path(env_id, now)
        if not taken:  # another command is faster
            path.mkdir(parents=True)
            taken.append(path)
        return path

    monkeypatch.setattr(rundir, "new_path", take)
    flags = ("--env-id", "CartPole-v1", "--workers", "1", "--seeds", "4")
    assert launch_cluster.main([*flags]) == 0
    assert not any(taken[0].iterdir())
    (own,) = {path.resolve() for path in (here / "runs").iterdir()} - {taken[0].resolve()}
    assert [row["seed"] for row in rows(own)] == ["4"]
    assert "--at-once 0 is refused" in ended(2, launch_cluster.main, *flags, "--at-once", "0").line
    assert len([*(here / "runs").iterdir()]) == 2, "what is refused leaves no folder"


def test_seeds_of_other_settings_are_refused(here: Path, trained: Trained) -> None:
    base = ["--env-id", "CartPole-v1", "--workers", "1", "--start-from", "zoo/cartpole"]
    base += ["--seeds", "4-5", "--run-dir", "out", "--evaluator"]
    assert launch_cluster.main(base) == 0
    for seed in ("000", "001"):  # the launcher notes the checkpoint that a name stands for
        file = here / "out" / seed / "config.json"
        file.write_text(file.read_text().replace("zoo/car", str(REPOSITORY / "zoo" / "car")))
    assert launch_cluster.main(base) == 0, "the same command goes on"
    for changed, words in (
        (["--gamma", "0.5"], "was trained with gamma 0.99, not 0.5"),
        (["--preset", "none"], "was trained with network mlp, not auto; "),
        (["--workers", "2"], "was trained with workers 1, not 2"),
        (["--start-from", "zoo/pong"], "zoo/cartpole, not zoo/pong"),
        (["--seeds", "7"], "was trained with seed 4, not 7"),
    ):
        line = ended(2, launch_cluster.main, *base, *changed).line
        assert words in line
        assert line.endswith("give another --run-dir, or the settings as they were")
    assert len(trained.flags) == 2, "nothing was trained"


def test_a_trial_that_goes_on_starts_as_the_flags_say(here: Path, monkeypatch: Patch) -> None:
    flags = ["--env-id", "CartPole-v1", "--workers", "1", "--tensorboard", "--no-evaluator"]
    trainer = sweep.Trainer(sweep.Sweep(), flags, "", "")
    trial = sweep.Trial(here / "000", {"seed": 4})
    FakeRun(trial.path, trainer.wanted(trial)[0])
    popen = mock.Mock(return_value=mock.Mock(**{"wait.return_value": 0}))
    monkeypatch.setattr(subprocess, "Popen", popen)
    trainer.train(trial)
    assert popen.call_args.args[0][-3:] == ["--resume", "--tensorboard", "--no-evaluator"]


def test_optuna_goes_by_results_and_resumes_its_storage(trained: Trained) -> None:
    """The return is best where the learning rate is 1e-3 and the optimizer is Adam."""
    trained.mean = lambda values: (
        2.0 * (values["optimizer"] == "adam") - abs(math.log10(values["learning_rate"]) + 3)
    )
    vary = "optuna = true\n[vary]\nlearning_rate = { low = 1e-6, high = 1, log = true }\n"
    vary += 'optimizer = ["sgd", "adam"]\n'
    for trials, at_once in ((4, 2), (30, 1)):
        assert trained.run(f"trials = {trials}\n{vary}", at_once) == 0
        found = sorted(rows(trained.out), key=lambda row: row["trial"])
        assert len({row["learning_rate"] for row in found}) == trials
    assert len(trained.flags) == 30, "none is trained twice"
    means = [float(row["mean_return"]) for row in found]
    assert sum(means[20:]) / 10 > sum(means[:10]) / 10 + 0.3, "later draws are better ones"
    other = vary.replace('"adam"', '"adam", "rmsprop"')
    refused("has draws from other lists", trained.run, other)
    (trained.out / "optuna.db").write_text("not a database")
    refused("optuna.db can't be used .*take", trained.run, other)


def test_optuna_learns_from_the_games_that_an_interruption_ended(
    trained: Trained, monkeypatch: Patch
) -> None:
    vary = "optuna = true\ntrials = 2\n[vary]\ngamma = { low = 0.1, high = 0.9 }\n"

    def interrupted(trainer: sweep.Trainer, trial: sweep.Trial, said: Path, **_: bool) -> int:
        trainer.stop(signal.SIGTERM)
        return trained(trainer, trial, said)

    trained.plays = False
    with monkeypatch.context() as patch:
        patch.setattr(sweep.Trainer, "_launch", interrupted)
        assert trained.run(vary) == 143
    trained.plays, trained.mean = True, lambda _: 7.0
    assert trained.run(vary) == 0
    study = sweep._Study(sweep_of(trained.folder, vary), trained.out, 1)._study
    assert [not_none(trial.value) for trial in study.trials] == [-7.0, -7.0]


def test_settings_that_do_not_go_together_are_refused_before_any_trial(trained: Trained) -> None:
    vary = "[vary]\nepochs = [1, 4]\nratio_limit = [0, 0.2]\n"
    refused("^002: epochs 4 without a ratio_limit", trained.run, vary)
    assert not trained.out.exists()
    assert not trained.flags


def test_a_draw_of_optuna_that_is_refused_ends_no_other_trial(
    trained: Trained, caplog: Log
) -> None:
    vary = "optuna = true\ntrials = 12\n[vary]\nepochs = [1, 4]\nratio_limit = [0, 0.2]\n"
    for at_once in (3, 1):  # the second time goes on, with nothing to do
        assert trained.run(vary, at_once) == 70
        found = rows(trained.out)
        assert len(found) == 12
        bad = [(row["epochs"], row["ratio_limit"]) == ("4", "0.0") for row in found]
        assert 0 < sum(bad) == 12 - len(trained.flags) < 12
        assert [row["mean_return"] == "" for row in found] == bad == sorted(bad), "the last rows"
    assert ": epochs 4 without a ratio_limit" in caplog.text


def test_results_are_written_as_flags_take_them(trained: Trained, caplog: Log) -> None:
    caplog.set_level("INFO")
    trained.mean = lambda _: 3 * -0.2
    vary = "[fixed]\nenv_kwargs = { slip = 0.1 }\n[vary]\nhidden_sizes = [[64, 64], [32]]\n"
    vary += 'wrapper = [[{ name = "a:B", by = 2 }]]\n'
    assert trained.run(vary) == 0
    assert "mean return -0.6\n" in caplog.text
    shown = [(row["hidden_sizes"], row["wrapper"]) for row in rows(trained.out)]
    assert shown == [("64 64", '{"name": "a:B", "by": 2}'), ("32", '{"name": "a:B", "by": 2}')]
    fixed = sweep_of(trained.folder, vary).fixed
    assert command_line.plain(fixed["env_kwargs"]) == '{"slip": 0.1}'


def test_trials_at_once_are_expected_to_end_together(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    trainer = sweep.Trainer(sweep.Sweep(), (), "", "")
    trainer.began_at, trainer.num_trained = time.monotonic() - 60, 1
    trial = sweep.Trial(tmp_path / "000", {}, {"env_steps": 10, "wall_s": 1.0})
    sweep._report(trial, [trial], 10, trainer, 3)
    assert "1 of 10 trials, about 3 min left" in caplog.text


def test_optuna_chooses_for_trials_that_end_at_the_same_time(trained: Trained) -> None:
    vary = "optuna = true\ntrials = 24\n[vary]\nlearning_rate = { low = 1e-6, high = 1 }\n"
    assert trained.run(vary, 8) == 0
    assert len({row["learning_rate"] for row in rows(trained.out)}) == 24


def test_optuna_knows_the_order_of_results_that_hardly_differ(tmp_path: Path) -> None:
    vary = "optuna = true\n[vary]\ngamma = { low = 0.1, high = 0.9 }\n"
    study = sweep._Study(sweep_of(tmp_path, vary), tmp_path, 1)
    summaries: list[sweep.Values] = [
        {"solved": True, "env_steps": 9},
        {"solved": True, "env_steps": 10},
        {"mean_return_100": 2.5e-6},
        {"mean_return_100": 2.4e-6},
        {"mean_return_100": None},
    ]
    for number, summary in enumerate(summaries):
        study.choose(number)
        study.tell(number, sweep.Trial(tmp_path, {}, summary))
    values = [not_none(trial.value) for trial in study._study.trials]
    assert values == sorted(set(values))


# A sweep of two trials, each of which sleeps instead of training.
ASLEEP = """
import sys
from pathlib import Path
from a3c.launch import sweep
sweep.REPOSITORY = Path(sys.argv[1])
sys.exit(sweep.run(sweep.Sweep(lists={"seed": [1, 2]}), Path(sys.argv[1], "out"), (), 1))
"""
TRIAL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
def interrupted(*_):
    print("interrupted", flush=True)
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
signal.signal(signal.SIGINT, interrupted)
print("at work", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_trials_too(tmp_path: Path, python: Python, number: signal.Signals) -> None:
    """SIGHUP comes when the terminal is closed; a second Ctrl-C reaches the trial as such."""
    (tmp_path / "launch_cluster.py").write_text(TRIAL)
    sweeping = python(ASLEEP, tmp_path)
    said = tmp_path / "out" / "000.log"
    wait_until(lambda: said.exists() and said.read_text(), "the first trial")
    assert [path.stat().st_mode & 0o777 for path in (said.parent, said)] == [0o700, 0o600]
    threads = Path(f"/proc/{sweeping.pid}/task").glob("*/children")
    (trial,) = map(int, " ".join(thread.read_text() for thread in threads).split())
    sweeping.send_signal(number)
    if number == signal.SIGINT:
        wait_until(lambda: "interrupted" in said.read_text(), "the first Ctrl-C")
        sweeping.send_signal(number)
    assert sweeping.wait(timeout=60) == 128 + number
    assert is_gone(trial)
    assert {path.name for path in said.parent.iterdir()} == {"000.log", "sweep.csv"}


def test_a_killed_sweep_takes_its_trial_along(tmp_path: Path, python: Python) -> None:
    """As by Ctrl-\\ too; otherwise the same command would find runs that still train."""
    pid = tmp_path / "pid"
    write = f"import os, pathlib\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))"
    (tmp_path / "launch_cluster.py").write_text(f"{write}\n{TRIAL}")
    sweeping = python(ASLEEP, tmp_path)
    trial = int(wait_until(lambda: pid.exists() and pid.read_text(), "the first trial"))
    sweeping.kill()
    wait_until(lambda: is_gone(trial), "its end", 20.0)


def test_a_first_trial_that_is_refused_leaves_nothing(here: Path) -> None:
    folder = Path("-new")  # which no command takes for a flag
    flags = ("--seeds", "0", "--env-id", "CartPole-v7", f"--run-dir={folder}")
    done = call_script("launch_cluster.py", *flags)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("launch_cluster.py: 000: env_id 'CartPole-v7'")
    assert not folder.exists()
