"""`keep`: what containers, pods and tasks of Slurm run, on real processes of this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c import cluster, processes
from a3c.errors import UserError
from a3c.keeping import health
from a3c.launching import keep
from a3c.placing.place import expand
from a3c.rundir import RunDir
from tests.runs import DEADLINE_S, REPOSITORY, wait_until

KEEP = (sys.executable, str(REPOSITORY / "launch_cluster.py"), "keep")
HOSTS = ("--ps-hosts", "localhost:1", "--worker-hosts", "localhost:2,localhost:3")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ps-0", ["ps-0"]),
        ("worker-4-6,9", ["worker-4", "worker-5", "worker-6", "worker-9"]),
        ("my-run-worker-3", ["worker-3"]),
        ("a.ps-worker-1,1", ["worker-1"]),
    ],
)
def test_processes_are_meant_by_name_range_and_pod(text: str, names: list[str]) -> None:
    assert keep.expand_names(text) == names


@pytest.mark.parametrize("text", ["", "worker", "worker-", "worker-3-1", "cook-1", "worker-1-2-3"])
def test_names_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="process"):
        keep.expand_names(text)


@given(st.text(alphabet="worker-psm0123456789,.x", max_size=20))
def test_any_name_is_some_processes_or_refused(text: str) -> None:
    with contextlib.suppress(UserError):
        names = keep.expand_names(text)
        assert 0 < len(names) == len(set(names))


def test_a_pattern_of_addresses_stands_for_as_many_as_there_are() -> None:
    assert expand("worker-{}.a3c:2222", 2) == ["worker-0.a3c:2222", "worker-1.a3c:2222"]
    assert expand("a:1, b:2", 7) == ["a:1", "b:2"]


def run_keep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A `keep` to its end."""
    return subprocess.run(
        [*KEEP, *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("worker-2", *HOSTS), "worker-2 is not in the run: it has 1 ps, 2 workers"),
        (("worker-0", *HOSTS[:2]), "--worker-hosts is missing"),
        ((), "--job is missing: give it, or set TF_CONFIG"),
        (("worker-0", *HOSTS[:2], "--worker-hosts", "far:1"), "--trusted-network"),
    ],
)
def test_what_has_no_place_is_refused_in_one_line(
    arguments: Sequence[str], says: str, tmp_path: Path
) -> None:
    done = run_keep(*arguments, "--run-dir", str(tmp_path / "run"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def keeping(
    run: RunDir, hosts: Sequence[str], *names: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """A `keep` for each of some names at work; whatever is left is killed."""
    settings = ("--env-id", "CartPole-v1", "--max-env-steps", "4000", "--stop-at-return", "none")
    more = ("--evaluation-episodes", "2", "--run-dir", str(run.path), *settings)
    with contextlib.ExitStack() as stack:
        kept = []
        for name in names:
            process = subprocess.Popen(
                [*KEEP, name, *hosts, *more],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            kept.append(process)
        yield kept


def test_a_run_in_pieces_ends_with_a_summary_and_stays_over(tmp_path: Path) -> None:
    """A ps, the chief, and two workers as children of one."""
    run = RunDir(tmp_path / "run")
    ports = cluster.free_ports(4)
    hosts = (
        *("--ps-hosts", f"127.0.0.1:{ports[0]}"),
        *("--worker-hosts", ",".join(f"127.0.0.1:{port}" for port in ports[1:])),
    )
    with keeping(run, hosts, "ps-0", "worker-0", "worker-1-2") as kept:
        records = wait_until(lambda: all_running(run), "all four to run")
        assert health.judge(records)[0]
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in kept]
    assert [process.returncode for process in kept] == [0, 0, 0], said
    assert {record.state for record in processes.read_records(run.path)} == {"done"}
    assert health.main([str(tmp_path)]) == 0
    summary = json.loads(run.summary.read_text())
    assert summary["state"] == "done"
    assert summary["evaluation"]["episodes"] == 2
    assert summary["env_steps"] >= 4000
    assert "played" in said[1] or "mean" in said[1]

    for name in ("worker-0", "worker-2", "ps-0"):
        again = run_keep(name, *hosts, "--env-id", "CartPole-v1", "--run-dir", str(run.path))
        assert again.returncode == 0
        assert "run is over: give --resume" in again.stderr
    spare = run_keep("worker-3", "--spares", *hosts, "--run-dir", str(run.path))
    assert (spare.returncode, spare.stderr) == (
        0,
        "worker-3 is not needed: the run has 3 workers\n",
    )


def all_running(run: RunDir) -> list[processes.ProcessRecord]:
    """The records of a run once its four processes have beaten, else none."""
    records = processes.read_records(run.path)
    return records if [record.state for record in records] == ["running"] * 4 else []


def test_nothing_is_well_where_nothing_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "nothing is kept here\n"
