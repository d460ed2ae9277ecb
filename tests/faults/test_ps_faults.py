"""A ps or a chief that is killed, or a frozen ps: all processes recover.

All tests use one run. Its checkpoint interval is the most that it may lose each time.
"""

import re
import signal
import time
from collections.abc import Iterator

import pytest

from a3c.run import rows
from tests.faults.cluster import Cluster, Moment, report
from tests.runs import manifest, wait_until

INTERVAL_S = 2.0
PS_TIMEOUT_S = 14.0
SLACK_S = 8.0  # a save and an update, on a slow machine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers on CartPole, and the ps killed twice before it was at work."""
    made = Cluster(
        tmp_path_factory.mktemp("ps"),
        *("--env-id", "CartPole-v1", "--checkpoint-interval", str(INTERVAL_S)),
        *("--ps-timeout", str(PS_TIMEOUT_S)),
        workers=2,
    )
    with made.running():
        wait_until(lambda: made.pid("ps-0"), "a ps that imports TensorFlow")
        made.signal("ps-0")
        wait_until(lambda: "serving at" in made.log("ps-0"), "a ps that is at work")
        made.signal("ps-0")
        made.wait_until_training()
        yield made


def assert_lost_no_more_than_the_interval(cluster: Cluster, fault: Moment) -> None:
    """The run went back by no more than the interval, and the logs and `status` say how far."""
    assert fault.checkpoint_age_s < INTERVAL_S + SLACK_S
    assert cluster.began_at() >= fault.checkpoint
    for before, after in cluster.losses()[fault.losses :]:
        words = rows.rollback_message(before, after)
        assert words in cluster.log("worker-0")
        wait_until(lambda: words in cluster.said(), "the launcher's word for it", 10.0)  # noqa: B023
    # `status` has only the number of those before it.
    last = rows.rollback_message(*cluster.losses()[-1])
    assert f"the run {last}" in "\n".join(cluster.status()["warnings"])


def test_a_ps_that_is_killed_at_the_start_is_waited_for(cluster: Cluster) -> None:
    assert cluster.record("ps-0").restarts >= 2
    assert cluster.losses() == []


def test_a_killed_ps_comes_back_from_the_newest_checkpoint(cluster: Cluster) -> None:
    wait_until(lambda: cluster.newest_checkpoint_step(), "a checkpoint")
    time.sleep(INTERVAL_S / 2)
    wait_until(lambda: cluster.step() > cluster.newest_checkpoint_step(), "a row to be lost")
    before = cluster.moment()
    cluster.signal("ps-0")
    cluster.wait_for_return("ps SIGKILL", before)
    assert len(cluster.losses()) == 1
    assert_lost_no_more_than_the_interval(cluster, before)
    cluster.wait_for_checkpoint()
    cluster.assert_smooth_curves()


def test_a_ps_that_is_killed_during_a_save_and_once_more_comes_back(cluster: Cluster) -> None:
    cluster.switch("disk", 0.3)
    (save,) = wait_until(lambda: list(cluster.run.checkpoints.glob(".writing-*")), "a save")
    saved = int(save.name.split("-")[1])
    wait_until(lambda: cluster.step() > saved, "a row that the save doesn't have")
    first = cluster.moment()
    cluster.signal("ps-0")
    restored = "restored the ps from"
    wait_until(lambda: restored in cluster.said_since("worker-0", first), "a restored ps")
    second = cluster.moment()
    cluster.signal("ps-0")
    cluster.switch_off("disk")
    cluster.wait_for_return("ps SIGKILL again as soon as it was restored", second)
    assert len(cluster.losses()) > first.losses
    assert_lost_no_more_than_the_interval(cluster, first)
    cluster.assert_smooth_curves()


def test_a_chief_that_is_killed_during_a_save_never_writes_the_variables(cluster: Cluster) -> None:
    life, losses = cluster.ps_life(), cluster.losses()
    cluster.switch("disk", 0.5)
    (unfinished,) = wait_until(lambda: list(cluster.run.checkpoints.glob(".writing-*")), "a save")
    before = cluster.moment()
    restarts = cluster.record("worker-1").restarts
    cluster.signal("worker-0")
    cluster.switch_off("disk")
    cluster.wait_for_return("chief SIGKILL in a save", before, "worker-0")
    step = cluster.step()
    wait_until(lambda: cluster.newest_checkpoint_step() >= step, "a checkpoint", INTERVAL_S + 5)
    assert "attached to a ps that is already" in cluster.said_since("worker-0", before)
    assert (cluster.ps_life(), cluster.losses()) == (life, losses)
    assert not unfinished.exists()
    assert cluster.longest_pause("worker-1", before.wall) < 5.0
    assert cluster.record("worker-1").restarts == restarts
    cluster.assert_smooth_curves()


def test_a_ps_that_is_frozen_for_ten_seconds_is_waited_for(cluster: Cluster) -> None:
    records = {name: cluster.record(name).restarts for name in ("ps-0", *cluster.workers)}
    before, losses, step = cluster.moment(), cluster.losses(), cluster.step()
    cluster.signal("ps-0", signal.SIGSTOP)
    time.sleep(10.0)
    frozen = cluster.step()
    cluster.signal("ps-0", signal.SIGCONT)
    wait_until(lambda: cluster.step() > frozen, "training that goes on", 30.0)
    assert frozen >= step
    assert records == {name: cluster.record(name).restarts for name in records}
    assert (before.lives, losses) == (cluster.moment().lives, cluster.losses())


def test_a_ps_that_is_frozen_for_good_is_treated_as_dead(cluster: Cluster) -> None:
    cluster.wait_for_checkpoint()
    frozen = cluster.moment()
    cluster.signal("ps-0", signal.SIGSTOP)
    said = f"gave no heartbeat for {PS_TIMEOUT_S:g} s, and is ended"
    wait_until(lambda: said in cluster.said_since("ps-0", frozen), said, 3 * PS_TIMEOUT_S)
    ended = cluster.moment()
    report("ps frozen for good: noticed", ended.monotonic - frozen.monotonic, 0.0)
    cluster.wait_for_return("ps frozen for good: from then on", ended)
    assert_lost_no_more_than_the_interval(cluster, frozen)


def test_a_ps_that_is_back_before_anyone_looked_gets_no_push_while_blank(cluster: Cluster) -> None:
    """All workers sleep while the ps's keeper, and the ps with it, is killed and started again."""
    cluster.wait_for_checkpoint()
    restarts = cluster.record("ps-0").restarts
    for name in cluster.workers:
        cluster.signal(name, signal.SIGSTOP)
    frozen = cluster.moment()
    cluster.kill_keeper("ps-0")
    wait_until(lambda: "serving at" in cluster.said_since("ps-0", frozen), "a blank ps")
    assert cluster.record("ps-0").restarts == restarts + 1
    awake = cluster.moment()
    for name in cluster.workers:
        cluster.signal(name, signal.SIGCONT)
    cluster.wait_for_return("blank ps unnoticed: from waking up on", awake)
    said = cluster.said_since("worker-0", awake)
    (restored,) = re.findall(r"restored the ps from .*, env step (\d+)", said)
    assert int(restored) == cluster.began_at() >= frozen.checkpoint
    assert "the keeper of ps-0 was killed" in cluster.said()
    assert_lost_no_more_than_the_interval(cluster, frozen)


def test_a_clock_that_jumps_back_an_hour_changes_nothing(cluster: Cluster) -> None:
    restarts = {record.name: record.restarts for record in cluster.records()}
    cluster.switch("clock", -3600)
    before = cluster.newest_checkpoint_step()
    path = cluster.run.path
    wait_until(lambda: manifest(path).step > before, "a checkpoint", 30.0)
    wait_until(lambda: manifest(path).written_at < time.time() - 3000, "the jump", 30.0)
    time.sleep(2 * INTERVAL_S)
    assert cluster.newest_checkpoint_step() == manifest(path).step > before
    assert {record.name: record.restarts for record in cluster.records()} == restarts
    status = cluster.status()
    assert status["state"] == "running"
    assert status["global_step"] > before
    cluster.switch_off("clock")
    cluster.assert_smooth_curves()
