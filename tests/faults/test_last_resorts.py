"""Two ps of which one is lost, a port that is taken, and the end of the last worker."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.clusters import REPOSITORY
from tests.faults.cluster import MOODY, Cluster
from tests.runs import wait_until


def test_one_of_two_ps_may_die_and_the_run_fails_only_with_its_last_worker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *MOODY, "--ps", "2", workers=1)
    with cluster.running("--checkpoint-interval", "1") as process:
        cluster.wait_until_training()
        for name in ("ps-1", "ps-0"):
            newest = cluster.newest_checkpoint_step()
            wait_until(lambda: cluster.newest_checkpoint_step() > newest, "a checkpoint")  # noqa: B023
            life, before = cluster.ps_life(), cluster.moment()
            cluster.signal(name)
            cluster.wait_for_return(f"{name} of two SIGKILL", before)
            assert cluster.ps_life() != life
            assert cluster.began_at() >= newest
        cluster.assert_smooth_curves()
        cluster.switch("raise-in-step.0")

        def has_ended() -> bool:
            cluster.hurry("worker-0")
            return process.poll() is not None

        wait_until(has_ended, "the end of the run")
    assert process.returncode == 1
    assert "ValueError: the pole broke" in cluster.said()
    assert cluster.status()["state"] == "failed"


def test_a_port_that_was_taken_since_it_was_checked_is_named_and_worth_another_try(
    tmp_path: Path,
) -> None:
    """Its keeper tries again: 75."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        hosts = ("--ps-hosts", f"127.0.0.1:{port}", "--worker-hosts", "127.0.0.1:1")
        command = (sys.executable, str(REPOSITORY / "worker.py"), "--job", "ps", "--task", "0")
        done = subprocess.run(
            [*command, *hosts, "--run-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 75
    assert f"ps-0 can't listen on port {port}" in done.stderr
