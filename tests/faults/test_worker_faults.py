"""Workers that are killed, hang, leak memory, raise or compute NaN: the others train on."""

import concurrent.futures
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from a3c.errors import EXIT_RETRY
from tests.faults.cluster import FAULTY, Cluster, report
from tests.runs import wait_until

PATIENCE = (
    *("--ps-timeout", "5", "--heartbeat-timeout", "6"),
    *("--max-worker-memory", "1000", "--max-dropped-rollouts", "0"),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("workers"), *FAULTY, *PATIENCE)
    with made.running("--checkpoint-interval", "2"):
        made.wait_until_training()
        yield made
        made.stop()


def test_a_killed_worker_is_back_soon_and_the_others_never_pause(cluster: Cluster) -> None:
    before = cluster.moment()
    cluster.signal("worker-2")
    took_s = cluster.wait_for_return("worker SIGKILL", before, "worker-2")
    cluster.assert_step_never_fell()
    for name in ("worker-0", "worker-1"):
        pause_s = cluster.longest_pause(name, before.wall)
        assert pause_s < max(1.0, took_s / 2), f"{name} paused for {pause_s:.1f} s"
        assert cluster.record(name).restarts == 0


def kill_ten_times(cluster: Cluster, name: str) -> None:
    """Kill a worker as soon as it is started again, ten times, and wait until it is back.

    The keeper is told not to wait between the first nine starts; then its delay is the longest.
    """

    def another() -> int | None:
        cluster.skip_restart_delay(name)
        return cluster.pid(name)

    kills = 0
    while kills < 10:
        pid = wait_until(another, f"another {name}")
        before = cluster.moment()
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(pid, signal.SIGKILL)
            kills += 1
        wait_until(lambda: cluster.pid(name) != pid, "its end")  # noqa: B023
    cluster.wait_for_return("worker SIGKILL for the tenth time", before, name)


def inject(cluster: Cluster, fault: str, notice: str) -> None:
    """Give worker 1 a fault until its keeper has noticed, and wait until the worker is back."""
    before = cluster.moment()
    if fault == "stop":
        cluster.signal("worker-1", signal.SIGSTOP)
    else:
        cluster.switch(f"{fault}.1")
    wait_until(lambda: notice in cluster.said_since("worker-1", before), notice)
    noticed = cluster.moment()
    if fault != "stop":
        cluster.switch_off(f"{fault}.1")
    report(f"{fault}: noticed", noticed.monotonic - before.monotonic, 0.0)
    cluster.wait_for_return(f"{fault}: from then on", noticed, "worker-1")


def test_workers_that_are_killed_or_hang_or_leak_stop_no_other(cluster: Cluster) -> None:
    """Worker 2 is killed ten times while worker 1 stops, hangs and leaks; the chief trains on."""
    wall, restarts = time.time(), cluster.record("worker-2").restarts
    with concurrent.futures.ThreadPoolExecutor() as pool:
        killing = pool.submit(kill_ten_times, cluster, "worker-2")
        inject(cluster, "stop", "gave no heartbeat for 6 s, and is ended")
        inject(cluster, "hang", "gave no heartbeat for 6 s, and is ended")
        inject(cluster, "leak", "MB of memory, more than 1000, and is ended")
        killing.result()
    assert cluster.record("worker-2").restarts >= restarts + 10
    assert cluster.longest_pause("worker-0", wall) < 5.0
    assert cluster.record("ps-0").restarts == 0
    assert cluster.record("worker-0").restarts == 0, cluster.log("worker-0")[-3000:]
    cluster.assert_step_never_fell()


def test_rollouts_that_are_not_finite_are_counted_and_never_reach_the_ps(cluster: Cluster) -> None:
    cluster.switch("nan-reward.2")
    cluster.switch("inf-observation.1")
    for name in ("worker-1", "worker-2"):
        wait_until(lambda: cluster.rows(name)[-1].get("drops/rollouts", 0) > 3, "drops")  # noqa: B023
    dropped = cluster.step()
    cluster.switch_off("nan-reward.2")
    cluster.switch_off("inf-observation.1")
    wait_until(lambda: cluster.newest_checkpoint_step() > dropped, "another checkpoint")
    cluster.assert_finite()
    assert cluster.status()["dropped_rollouts"] > 6
    assert any("rollouts dropped" in line for line in cluster.status()["warnings"])


def test_a_crash_loop_ends_as_failed_with_its_first_error_alone(cluster: Cluster) -> None:
    """Worker 1 raises in reset at every start; the chief raises once, and stands in as chief."""
    cluster.switch("raise-in-reset.1")

    def is_failed() -> bool:
        cluster.skip_restart_delay("worker-1")
        return cluster.record("worker-1").state == "failed"

    wait_until(is_failed, "the end of patience")
    failed = cluster.record("worker-1")
    assert failed.last_exit
    assert failed.last_exit.code == 1
    assert "ValueError: no game today" in (failed.first_error or ())
    assert any("worker-1 failed" in line for line in cluster.status()["warnings"])
    chief = cluster.record("worker-0")
    if chief.last_exit:  # on a slow machine it may have been silent, or have lost patience
        was_silent = chief.last_exit.reason == "heartbeat"
        assert was_silent or chief.last_exit.code == EXIT_RETRY, cluster.log("worker-0")[-3000:]
    before, restarts = cluster.newest_checkpoint_step(), chief.restarts
    cluster.switch("raise-in-step.0")
    wait_until(lambda: "not playing any more" in cluster.log("worker-0"), "a chief standing in")
    wait_until(lambda: cluster.newest_checkpoint_step() > before, "its checkpoint")
    assert cluster.trains("worker-2")
    assert cluster.status()["state"] == "running"
    assert cluster.record("worker-0").restarts == restarts, cluster.log("worker-0")[-3000:]
    cluster.assert_step_never_fell()
