"""Run directories: which can be used, and what is written into them."""

import contextlib
import errno
import functools
import importlib.metadata
import json
import os
import re
import shutil
import signal
from pathlib import Path
from unittest import mock

import pytest

import launch_cluster
from a3c.config import Config, to_dict
from a3c.launch import preflight, run_summary
from a3c.process import process_records
from a3c.run import rundir
from a3c.run.rundir import RunDir
from a3c.watch import status
from tests import Patch, ended, refused
from tests.clusters import config
from tests.fake_runs import myself, process_record
from tests.runs import ONLY_IN_ENVIRONMENT, Python, call, line_of

START = ["--mode", "child", "--env-id", "CartPole-v1", "--run-dir"]


def created(path: str | Path) -> RunDir:
    return rundir.create(Path(path), config(env_id="CartPole-v1"), None, resume=False)


def test_config_json_makes_the_run_again_and_holds_nothing_of_the_environment(here: Path) -> None:
    settings = config(env_id="CartPole-v1", seed=3, learning_rate=1.1e-3, hidden_sizes=[8])
    with mock.patch.dict(os.environ, SOME_TOKEN=ONLY_IN_ENVIRONMENT):
        run = rundir.create(Path("here"), settings, "cartpole", resume=False)
    assert [path for path in run.path.rglob("*") if path.is_file()] == [run.config]
    text = run.config.read_text()
    assert ONLY_IN_ENVIRONMENT not in text
    contents = json.loads(text)
    assert contents["config"] == to_dict(settings)
    assert (contents["preset"], contents["resumed"]) == ("cartpole", False)
    assert contents["versions"].keys() == {"python", *rundir.LIBRARIES}
    assert contents["git_commit"] == rundir.git_commit()
    assert contents["started_at"] > 1e9
    assert rundir.read_config(run) == settings
    assert run.path.is_absolute()


def test_the_smaller_package_of_tensorflow_counts_as_tensorflow(monkeypatch: Patch) -> None:
    installed = {"tensorflow-cpu": "2.21.0", "numpy": "2.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert rundir.versions().items() >= {"tensorflow": "2.21.0", "numpy": "2.0"}.items()


def test_a_directory_that_is_new_or_empty_or_was_only_held_is_free(here: Path) -> None:
    """Of others, docs/bad-input.md has those that hold other things."""
    Path("empty").mkdir()
    with rundir.hold(Path("held")):
        Path("held/.config.json.123").touch()  # of a launcher that was killed
    for free in ("new", "empty", "held"):
        rundir.check_free(Path(free), resume=False)
    assert not Path("new").exists()
    refused("there is no run in new", rundir.check_free, Path("new"), resume=True)
    refused("empty holds no run", rundir.check_free, Path("empty"), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_path_that_cannot_be_a_directory_is_refused_by_name(here: Path, resume: bool) -> None:
    Path("file").touch()
    refused("File name too long", rundir.check_free, Path("x" * 300), resume=resume)
    said = "--run-dir file/below: Not a directory; give a directory"
    refused(said, rundir.hold(Path("file/below")).__enter__)


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from a3c.run import rundir
with rundir.hold(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_held_run_is_refused_until_its_holder_is_killed(here: Path, python: Python) -> None:
    """Not even through a child that outlives it."""
    path = here / "here"
    holder = python(HOLDER, path)
    child = int(line_of(holder.stdout))
    try:
        refused("in use by a running launcher", rundir.hold(path).__enter__)
        holder.kill()
        assert holder.wait() == -signal.SIGKILL
        with pytest.raises(ZeroDivisionError), rundir.hold(path):
            raise ZeroDivisionError
        with rundir.hold(path):
            refused("here is in use by a running", rundir.hold(path).__enter__)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_launcher_leaves_a_run_that_another_one_holds(here: Path) -> None:
    path = here / "here"
    created(path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with rundir.hold(path):
        line = ended(2, launch_cluster.main, *START, str(path), "--resume").line
    assert f"{path} is in use by a running launcher" in line
    assert {file: file.read_bytes() for file in before} == before


def test_new_runs_are_named_after_the_game_and_the_time(here: Path) -> None:
    for env_id, name in (
        ("ALE/Pong-v5", "pong-v5"),
        ("my.module:My_Env-v0", "my-env-v0"),
        ("///", "run"),
        ("../../etc", "etc"),
    ):
        first = rundir.new_path(env_id, 0.0)
        assert first.parent == rundir.RUNS
        assert re.sub(r"-\d{8}-\d{6}$", "", first.name) == name
        first.mkdir(parents=True)
        again = rundir.new_path(env_id, 0.0)  # in the same second
        assert again.name == f"{first.name}-2"
        again.mkdir()
        assert rundir.new_path(env_id, 0.0).name == f"{first.name}-3"


def test_runs_are_found_by_name_by_path_and_by_age(here: Path) -> None:
    refused("there is no run in", rundir.find, None)
    made = [created(path) for path in ("runs/b", "runs/a", "elsewhere/c")]
    for age, run in enumerate(made):
        os.utime(run.config, (1000 + age, 1000 + age))
    (here / "runs" / "no-run").mkdir()
    assert rundir.all_runs() == made[:2]
    assert rundir.find(None) == made[1]
    assert rundir.find("b") == rundir.find("runs/b") == rundir.find(str(made[0].path)) == made[0]
    assert rundir.find("elsewhere/c") == made[2]
    for name in ("c", "no-run", "a\0b"):
        refused("no run ", rundir.find, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_the_newest_run_is_not_one_of_another_user(here: Path, monkeypatch: Patch) -> None:
    """Its plan may name commands, which `stop` and --resume run."""
    run = created("runs/theirs")
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert rundir.find(None) == run, "all runs there are the owner's of the folder"
    os.chown(here / "runs", another, -1)
    refused("there is no run in .* that is yours", rundir.find, None)
    assert rundir.all_runs() == [rundir.find("theirs")] == [run]


def test_a_pipe_in_place_of_a_config_is_no_run(here: Path) -> None:
    """Whoever reads it waits for ever."""
    run = created("runs/run")
    (here / "runs" / "pipe").mkdir()
    os.mkfifo(here / "runs" / "pipe" / "config.json")
    assert rundir.all_runs() == [run]


def test_a_link_in_place_of_the_lock_is_refused_and_its_target_kept(here: Path) -> None:
    run = created("run")
    Path("precious").write_text("precious")
    (run.path / rundir.LOCK).symlink_to(here / "precious")
    refused("--run-dir .*: Too many levels of symbolic", rundir.hold(run.path).__enter__)
    assert Path("precious").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize("resume", [False, True])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, resume: bool) -> None:
    """Unless what is made there is that user's too, as where NFS maps everybody to nobody."""
    check = functools.partial(rundir.check_free, created(tmp_path / "run").path, resume=resume)
    if not resume:
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 4321, -1)
    check()  # root may
    with mock.patch.object(os, "geteuid", return_value=1234):
        refused("--run-dir .*/run belongs to another user: give another", check)
        with mock.patch.object(os, "fstat", return_value=mock.Mock(st_uid=4321)):
            check()


def git(*arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    plain = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return call("git", *identity, *arguments, check=True, env=plain).stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_commit_is_its_hash_whatever_tags_there_are(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(rundir, "REPOSITORY", here)
    assert rundir.git_commit() is None
    git("init", "-q")
    (here / "unpacked").mkdir()
    assert rundir.git_commit() is None
    (here / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert rundir.git_commit() == commit
    git("tag", "-a", "v1", "-m", "a release")
    assert rundir.git_commit() == commit
    index = here / ".git" / "index"
    before = (index.stat().st_ino, index.stat().st_mtime_ns)
    os.utime(here / "code.py", (0, 0))  # git would like to note that it is as it was
    assert rundir.git_commit() == commit
    # Nothing is written, so no lock is left by a launcher that is killed.
    assert (index.stat().st_ino, index.stat().st_mtime_ns) == before
    (here / "code.py").write_text("2")
    assert rundir.git_commit() == f"{commit}-dirty"
    # A folder inside somebody else's checkout has no commit of its own.
    monkeypatch.setattr(rundir, "REPOSITORY", here / "unpacked")
    assert rundir.git_commit() is None


def test_runs_of_one_name_have_labels_of_their_own_which_stay(tmp_path: Path) -> None:
    first, second = created(tmp_path / "a/run"), created(tmp_path / "b/run")
    assert first.label != second.label
    assert re.fullmatch(r"run-[a-z2-9]{4}", first.label)
    label = first.label
    assert rundir.create(first.path, Config(), None, resume=True).label == label
    moved = RunDir(first.path.rename(tmp_path / "moved"))
    assert moved.label == label
    assert rundir.labelled(moved.path, resume=True).label == label
    link = tmp_path / "link"
    link.symlink_to(moved.path)
    assert RunDir(link).label == label
    contents = json.loads(second.config.read_text())  # a run of an earlier version
    del contents["label"], contents["path"]
    second.config.write_text(json.dumps(contents))
    assert second.label == rundir.create(second.path, Config(), None, resume=True).label == "run"


def test_a_copy_ends_nothing_and_gets_a_label_when_resumed(tmp_path: Path) -> None:
    first = created(tmp_path / "run")
    copy = tmp_path / "copy"
    (first.path / "wandb-id").write_text("1234")
    shutil.copytree(first.path, copy)
    for words in ("stop", "restart worker-0 --run", "remove worker-0 --run", "add --run"):
        said = ended(2, launch_cluster.main, *words.split(), str(copy)).line
        assert f"is a copy of {first.path}" in said
    record = process_record("worker-0", "running", None, keeper=myself())
    for run in (first, RunDir(copy)):
        process_records.write_json(run.record("worker-0"), record)
    states = [status.read(run).processes[1].state for run in (first, RunDir(copy))]
    assert states == ["running", "waiting"]
    refused("^run is still running", preflight.check_left_over, RunDir(copy))
    first.record("worker-0").unlink()
    assert launch_cluster.main(["stop", str(first.path)]) == 0
    again = rundir.create(copy, Config(), None, resume=True)
    assert again.label != first.label
    assert again.label.startswith("copy-")
    rundir.create(first.path, Config(), None, resume=True)
    assert [path.parent for path in tmp_path.glob("*/wandb-id")] == [first.path]


def test_a_second_launcher_leaves_the_run(tmp_path: Path, monkeypatch: Patch) -> None:
    """Both find the directory free; the first has written its run before the second holds it."""
    path, hold = tmp_path / "run", rundir.hold

    def hold_late(wanted: Path) -> contextlib.AbstractContextManager[None]:
        created(path)
        return hold(wanted)

    monkeypatch.setattr(rundir, "hold", hold_late)
    # What a second run would write: it ends there, and starts nothing.
    monkeypatch.setattr(launch_cluster, "ChildKeepers", lambda *_, **__: None)
    monkeypatch.setattr(run_summary, "supervise", lambda *_: 0)
    assert "holds a run already" in ended(2, launch_cluster.main, *START, str(path)).err


def test_asking_whether_a_run_is_held_takes_no_lock(tmp_path: Path, monkeypatch: Patch) -> None:
    """A launcher that started just then was refused."""
    with rundir.hold(tmp_path):
        assert rundir.is_held(tmp_path)
    no_locks = mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(rundir, "lock", no_locks)
    assert not rundir.is_held(tmp_path)
    no_locks.assert_not_called()
    refused("No locks available", rundir.hold(tmp_path).__enter__)


def test_a_name_taken_in_the_same_second_is_not_used(here: Path, monkeypatch: Patch) -> None:
    reserve = rundir.reserve
    taken: list[RunDir] = []

    def take(path: Path) -> bool:
        if not taken:
            taken.append(rundir.create(path, Config(), None, resume=False, label="other"))
        return reserve(path)

    monkeypatch.setattr(rundir, "reserve", take)
    monkeypatch.setattr(launch_cluster, "ChildKeepers", lambda *_, **__: None)
    monkeypatch.setattr(run_summary, "supervise", lambda *_: 0)
    arguments = ["--mode", "child", "--env-id", "CartPole-v1", "--workers", "1"]
    assert launch_cluster.main(arguments) == 0
    assert len([run for run in rundir.all_runs() if run.path != taken[0].path]) == 1
    assert taken[0].label == "other", "it is as it was"


def test_an_interrupted_start_leaves_no_directory(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(rundir, "git_commit", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rundir.create(Path("run"), config(), None, resume=False)
    assert not Path("run").exists()


def test_what_a_user_may_not_look_into_is_no_traceback(here: Path, monkeypatch: Patch) -> None:
    first = created("run")
    shutil.copytree(first.path, here / "copy")

    usual = Path.stat

    def stat(path: Path, **more: bool) -> os.stat_result:
        if path.is_relative_to(first.path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path, **more)

    (here / "name").symlink_to("nowhere")
    monkeypatch.setattr(Path, "stat", stat)
    assert rundir.copied_from(RunDir(here / "copy")) is None
    assert rundir.unused(Path("name")) == Path("name-2")
