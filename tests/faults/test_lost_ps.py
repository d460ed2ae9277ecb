"""One of two ps is lost or asked to end, a port is taken, and workers wait for what is gone."""

import os
import signal
import socket
from pathlib import Path
from time import monotonic as now

from a3c.cluster.topology import free_ports
from a3c.errors import EXIT_FATAL
from tests.faults.cluster import FAULTY, Cluster
from tests.runs import DEADLINE_S, call, script, started, wait_until

LEAVES_WITHIN_S = 5.0  # from the loss to the end of the worker, on a busy machine


def command(job: str, task: int) -> list[str]:
    """One process of a cluster, without a keeper."""
    return script("worker.py", "--job", job, "--task", str(task))


def test_one_of_two_ps_may_die_and_the_run_fails_only_with_its_last_worker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *FAULTY, "--max-dropped-rollouts", "3", "--ps", "2", workers=1)
    with cluster.running("--checkpoint-interval", "1") as process:
        cluster.wait_until_training()
        for name in ("ps-1", "ps-0"):
            cluster.wait_for_checkpoint()
            life, before = cluster.ps_life(), cluster.moment()
            cluster.signal(name)
            cluster.wait_for_return(f"{name} of two SIGKILL", before)
            assert cluster.ps_life() != life
            assert cluster.began_at() >= before.checkpoint
        cluster.assert_smooth_curves()
        cluster.switch("nan-reward.0")
        assert process.wait(timeout=DEADLINE_S) == EXIT_FATAL
    assert "dropped 3 rollouts in a row, because the rewards were not finite" in cluster.said()
    assert cluster.status()["state"] == "failed"


def test_the_chief_saves_before_a_ps_leaves_that_is_asked_to_end(tmp_path: Path) -> None:
    """The one that is ended alone comes back; the other's keeper gets SIGHUP: the run ends."""
    cluster = Cluster(tmp_path, "--env-id", "CartPole-v1", "--ps", "2", workers=2)
    with cluster.running("--checkpoint-interval", "3600") as process:
        cluster.wait_until_training()
        before, step = cluster.moment(), cluster.step()
        cluster.signal("ps-1", signal.SIGTERM)
        cluster.wait_for_return("ps-1 of two SIGTERM", before)
        assert cluster.began_at() >= step
        assert "a ps was asked to end" in cluster.said_since("worker-1", before)
        step = cluster.step()
        os.kill(cluster.record("ps-0").keeper.pid, signal.SIGHUP)
        assert process.wait(timeout=DEADLINE_S) == 0
    assert cluster.newest_checkpoint_step() >= step
    assert cluster.status()["state"] == "stopped"


def test_a_port_that_was_taken_since_the_check_is_named_and_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        hosts = ("--ps-hosts", f"127.0.0.1:{port}", "--worker-hosts", "127.0.0.1:1")
        done = call(*command("ps", 0), *hosts, "--run-dir", str(tmp_path))
    assert done.returncode == 75  # at which its keeper tries again
    assert f"ps-0 can't listen on port {port}" in done.stderr


def test_a_worker_that_waits_for_the_chief_leaves_as_soon_as_a_ps_is_lost(tmp_path: Path) -> None:
    """It waits neither for the ps to come back nor until `--ps-timeout` has passed."""
    ps, chief, waiter = (f"127.0.0.1:{port}" for port in free_ports(3))
    hosts = ["--ps-hosts", ps, "--worker-hosts", f"{chief},{waiter}", "--run-dir", str(tmp_path)]
    log = tmp_path / "log"
    waiting = [*command("worker", 1), "--env-id", "CartPole-v1", "--ps-timeout", "60"]
    both = (each + hosts for each in (command("ps", 0), waiting))
    with log.open("wb") as said, started(*both, stderr=said) as (server, worker):
        wait_until(lambda: "waiting for worker-0" in log.read_text(), "a waiting worker")
        server.kill()
        lost = wait_until(lambda: "the ps is lost" in log.read_text() and now(), "the loss")
        assert worker.wait(timeout=50) == 75
        assert now() - lost < LEAVES_WITHIN_S


def test_a_worker_leaves_as_soon_as_any_ps_is_lost_while_it_plays(tmp_path: Path) -> None:
    """It doesn't wait for a call to the second of two ps, which hangs until that one is back."""
    *ps, chief = (f"127.0.0.1:{port}" for port in free_ports(3))
    hosts = ["--ps-hosts", ",".join(ps), "--worker-hosts", chief, "--run-dir", str(tmp_path)]
    log, rows = tmp_path / "log", tmp_path / "metrics" / "worker-0.jsonl"
    playing = [*command("worker", 0), "--env-id", "CartPole-v1", "--log-interval", "1"]
    playing += ["--ps-timeout", "60", "--stop-at-return", "1e9"]
    all_three = (each + hosts for each in (command("ps", 0), command("ps", 1), playing))
    with log.open("wb") as said, started(*all_three, stderr=said) as (_, second, worker):
        wait_until(lambda: rows.exists() and rows.read_text().count("\n") > 2, "training")
        second.kill()
        killed = now()
        assert worker.wait(timeout=50) == 75
        assert now() - killed < LEAVES_WITHIN_S
    assert "the ps is lost" in log.read_text()
