"""Runs with damaged files: they are shown as far as possible, or refused in one line."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import evaluate
import launch_cluster
import plot
from a3c.process.process_records import ProcessRecord, write_json
from a3c.run import checkpoint, rundir
from a3c.watch import status
from a3c.watch.snapshot import lines
from tests import Log, Patch, snapshots
from tests.fake_runs import FakeRun, dead, live_run
from tests.test_fuzz_input import ANYTHING, Stage, check_refused

DAMAGES: dict[str, bytes] = {
    "empty": b"",
    "torn": b'{"config": {',
    "binary": bytes(range(256)),
    "list": b"[1, 2]",
    "null": b"null",
    "wrong types": json.dumps(
        {"config": {"env": 3}, "processes": 3, "state": 3}
        | dict.fromkeys(("env_steps", "time", "wall_s", "started_at", "mean_return_100"), "x")
        | {key: {} for key in ("cluster/env_steps_per_s", "train/staleness", "cluster/episodes")}
    ).encode(),
    "not finite": b'{"env_steps": NaN, "time": NaN, "wall_s": Infinity, "state": "done", '
    b'"started_at": NaN, "cluster/mean_return_100": NaN, "worker/env_steps_per_s": Infinity}',
    "huge": b'{"env_steps": ' + b"9" * 400 + b', "state": "done", "wall_s": 1e308, "time": 1e308}',
    "deep": b"[" * 100_000,
}
MANIFEST = "checkpoints/4580000/manifest.json"
FILES = (
    *("config.json", "plan.json", "summary.json", "processes/worker-0.json", "logs/worker-0.log"),
    *("metrics/worker-0.jsonl", "metrics/episodes.jsonl", "metrics/evaluator-0.jsonl", MANIFEST),
)
RUN = "runs/pole"
RESUME = ["start", "--dry-run", "--resume", "--run-dir", RUN]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    """A run that was stopped, all of whose files are as they should be."""
    made = live_run(tmp_path_factory.mktemp("whole") / RUN, workers=2, env_id="CartPole-v1")
    for name in ("ps-0", "worker-0", "worker-1"):
        made.process(name, "stopped", keeper=dead())
        made.run.log(name).write_text("a line\n")
    write_json(made.run.summary, {"state": "stopped", "env_steps": 4_580_000})
    process: dict[str, Any] = {"task": 0, "address": "127.0.0.1:1", "argv": [], "log": "log"}
    cast = [process | {"name": f"{role}-0", "role": role} for role in ("ps", "worker")]
    plan = {"run_dir": str(made.run.path), "processes": [p | {"environment": {}} for p in cast]}
    write_json(made.run.path / "plan.json", plan)
    return made


@pytest.fixture
def stage(tmp_path: Path, whole: FakeRun, monkeypatch: Patch) -> Stage:
    """A folder with a copy of that run, to be damaged; no tmux server but an own one."""
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.setattr(evaluate, "play", lambda *_: 0)
    monkeypatch.setattr(evaluate, "leave_on_signals", lambda: None)
    (tmp_path / "here").mkdir()
    shutil.copytree(whole.run.path, tmp_path / "here" / RUN)
    (tmp_path / "here" / RUN / rundir.LOCK).touch()
    return Stage(tmp_path / "here")


def spoil(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    if how == "a directory":
        path.mkdir()
    elif how != "gone":
        path.write_bytes(DAMAGES[how])


def readers(file: str) -> list[tuple[Any, list[str]]]:
    status_, restart = ["status", RUN], ["restart", "worker-0", "--run", RUN]
    drawn = (plot, [RUN, "--what", "return", "--output", "../plots"])
    verbs = {
        "config.json": [status_, ["watch", RUN], ["list"], ["attach", RUN], RESUME],
        "plan.json": [["cockpit", RUN]],  # where it is whole, it would go to work
        "summary.json": [status_, ["watch", RUN], ["list"]],
        "processes/worker-0.json": [status_, ["watch", RUN], ["stop", RUN], restart],
        "metrics/worker-0.jsonl": [status_, ["watch", RUN]],
        "metrics/episodes.jsonl": [status_],
        "metrics/evaluator-0.jsonl": [],
        "logs/worker-0.log": [["logs", "--run", RUN]],
        MANIFEST: [status_, RESUME],
    }
    tools = [drawn] if file.startswith("metrics") else []
    tools += [drawn, (evaluate, [RUN])] if file in ("config.json", MANIFEST) else []
    return [(launch_cluster, words) for words in verbs[file]] + tools


@pytest.mark.parametrize("how", [*DAMAGES, "a directory", "gone"])
@pytest.mark.parametrize("file", FILES)
def test_no_damage_to_a_file_of_a_run_is_a_traceback(file: str, how: str, stage: Stage) -> None:
    spoil(stage.path / RUN / file, how)
    for command, words in readers(file):
        said = stage.call(command.main, words)
        assert said.code in (0, 2), (words, said)
        if said.code:
            check_refused(said._replace(out=""), f"{command.__name__}.py")


RECORD = st.dictionaries(
    st.sampled_from([field.name for field in dataclasses.fields(ProcessRecord)]),
    ANYTHING | st.sampled_from(["running", "failed", 10**400, -(2**70), 1e308, float("nan")]),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(changes=RECORD, row=st.dictionaries(st.sampled_from(["time", "env_steps"]), ANYTHING))
def test_any_value_in_a_record_or_a_row_leaves_a_status(
    whole: FakeRun, tmp_path_factory: pytest.TempPathFactory, changes: Any, row: Any
) -> None:
    path = tmp_path_factory.mktemp("run")
    for name in ("config.json", "processes/worker-0.json", "metrics/worker-0.jsonl"):
        (path / name).parent.mkdir(exist_ok=True)
        shutil.copy(whole.run.path / name, path / name)
    record = path / "processes" / "worker-0.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    with (path / "metrics" / "worker-0.jsonl").open("a") as file:
        last = {"wall_s": 1.0, "cluster/workers": 1, "env_steps": 4_600_000, "time": 1.0}
        file.write(json.dumps(last | row) + "\n")
    found = status.read(rundir.RunDir(path))
    assert "\n".join(lines(found))
    assert json.dumps(found.as_dict(), allow_nan=False)


def test_damaged_files_are_named(stage: Stage) -> None:
    spoil(stage.path / RUN / "processes" / "worker-1.json", "binary")
    said = stage.call(launch_cluster.main, ["status", RUN])
    assert said.code == 0
    damaged = "processes/worker-1.json can't be read: ignored"
    assert f"! {damaged}" in said.out
    spoil(stage.path / RUN / "config.json", "torn")  # for `status` this is in docs/bad-input.md
    said = stage.call(launch_cluster.main, ["list"])
    assert (said.code, said.out.count("\n")) == (0, 1)
    assert said.out.startswith("pole ")
    assert " unread " in said.out


def test_damaged_lines_of_metrics_are_counted_once(stage: Stage, caplog: Log) -> None:
    rows = stage.path / RUN / "metrics" / "worker-0.jsonl"
    with rows.open("ab") as file:
        file.write(b'{"env_st\n\n\xff\xfe\n[1]\n')
    assert stage.call(plot.main, [RUN, "--output", str(stage.path.parent / "plots")]).code == 0
    (told,) = [line for line in caplog.messages if "damaged" in line]
    assert told.endswith("runs/pole/metrics (worker-0.jsonl 3)")


def test_every_reader_refuses_a_damaged_checkpoint_by_name(stage: Stage) -> None:
    path = stage.path / RUN / "checkpoints" / "4580000"
    held = checkpoint.read_manifest(path)
    manifest = dataclasses.replace(held, mean_return_100=3.0, files={})
    checkpoint.write(path.parent, manifest, snapshots.save)
    snapshots.damage(path / "variables.index")
    only = "the only checkpoint in"
    named = "checkpoints/4580000 is damaged (variables.index does not match its SHA-256)"
    for main, words, prog, line in (
        (launch_cluster.main, RESUME, "launch_cluster.py", only),
        (evaluate.main, [RUN], "evaluate.py", only),
        (evaluate.main, [RUN, "--which", "best"], "evaluate.py", named),
        (evaluate.main, [f"{RUN}/checkpoints/4580000"], "evaluate.py", named),
    ):
        said = stage.call(main, words)
        check_refused(said, prog)
        assert line in said.err
        assert "pole/checkpoints" in said.err
