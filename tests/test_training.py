"""A worker's life in this process, over real gRPC, with an environment that goes as written."""

import concurrent.futures
import errno
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from a3c.errors import FatalError, PlayError
from a3c.learn import training
from a3c.learn.learner import Learner
from a3c.learn.rollout import Stopwatch
from a3c.learn.training import Worker, not_finite
from a3c.run import checkpoint
from a3c.server.exchange import Push
from a3c.server.store import Store
from tests import Log, Patch, not_none, refused
from tests.clusters import InProcessCluster, agent, flat, push_of, rows, small_config, worker
from tests.runs import manifest, wait_until
from tests.scripted import ACTIONS, OBSERVATIONS, Script, make_envs, random_rollout

NAN, INF = float("nan"), float("inf")


def work(run_dir: Path, *rewards: float, here: Any = None, **settings: Any) -> Worker:
    """A chief that plays one game again and again."""
    short = {"rollout_length": 1, "max_env_steps": 40, "envs_per_worker": 1}
    games, same_step = [[Script(rewards)]], AutoresetMode.SAME_STEP
    config = small_config(**{**short, **settings})
    return worker(config, run_dir, lambda *_: make_envs(games, same_step), here)


def test_a_worker_whose_rollouts_are_all_dropped_gives_up_and_says_why(tmp_path: Path) -> None:
    # Three good steps, then nothing but poison.
    chief = work(tmp_path, 1.0, 2.0, 3.0, *[NAN, INF] * 200, max_dropped_rollouts=7)
    with pytest.raises(FatalError) as left:
        chief.run()
    assert str(left.value) == (
        "dropped 7 rollouts in a row, because the rewards were not finite: fix the environment, "
        "which gives them, or give --reward-clip if they are infinite; "
        "--max-dropped-rollouts sets the limit"
    )
    assert left.value.exit_code == 70
    assert rows(tmp_path)[-1]["drops/rollouts"] == 7
    assert rows(tmp_path)[-1]["env_steps"] == 3
    assert manifest(tmp_path).step == 3, "what was learned before is kept"


def test_the_first_row_is_about_playing_not_about_the_start(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    chief = work(tmp_path, 1.0)
    make_player = chief._make_player

    def slowly() -> Any:
        time.sleep(2.0)
        return make_player()

    monkeypatch.setattr(chief, "_make_player", slowly)
    chief.run()
    row = next(row for row in rows(tmp_path) if "worker/env_steps_per_s" in row)
    assert sum(share for name, share in row.items() if name.startswith("time/")) > 0.8


def test_time_for_reports_is_in_the_row_that_comes_after_them(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    chief = work(tmp_path, 1.0, log_interval_s=0.1, max_env_steps=4)
    monkeypatch.setattr(training, "REPORT_INTERVAL_S", 0.0)

    def slowly(_reports: object) -> bool:
        time.sleep(1.0)
        return True

    monkeypatch.setattr(chief._store, "report", slowly)
    chief._reports.append((0, 1.0, 1, 0))
    chief.run()
    row = next(row for row in rows(tmp_path) if "worker/env_steps_per_s" in row)
    assert 0.8 < sum(share for name, share in row.items() if name.startswith("time/")) < 1.1


def test_a_chief_saves_no_weights_that_are_not_finite(tmp_path: Path) -> None:
    chief = work(tmp_path, 1.0, max_dropped_rollouts=2)
    chief._store.overwrite_parameters(chief._learner.reply.parameters * NAN)
    with pytest.raises(FatalError, match="the weights were not finite"):
        chief.run()
    assert not checkpoint.by_step(tmp_path / "checkpoints")
    assert not chief._store.attached().any()


def test_rollouts_that_wait_for_their_returns_forgive_no_drops(tmp_path: Path) -> None:
    poison = [NAN] * 40 + [1.0] * 100
    chief = work(tmp_path, *poison, max_dropped_rollouts=7, return_steps=2, return_min_samples=3)
    with pytest.raises(FatalError, match="dropped 7 rollouts in a row"):
        chief.run()


def beside_another(run_dir: Path) -> tuple[Worker, Store, Push]:
    """A chief that can't learn, what another worker sees, and a push that changes no weights."""
    here = InProcessCluster(num_ps=1, num_workers=2)
    settings = {"max_dropped_rollouts": 2, "checkpoint_interval_s": 0.2, "max_env_steps": 10**9}
    chief = work(run_dir, *[NAN] * 400, here=here, **settings)
    of = agent(small_config(), OBSERVATIONS, ACTIONS)
    push = push_of(np.zeros(flat(of).size, np.float32), 1, learning_rate=0.0)
    return chief, here.store(small_config(), 1, of), push


def assert_gives_up_after(chief: Worker, pushes: Callable[[], None]) -> None:
    """Assert that a chief that can't learn fails, and that another worker could push meanwhile."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pushing = pool.submit(pushes)
        with pytest.raises(FatalError, match="dropped 2 rollouts in a row"):
            chief.run()
    assert pushing.exception() is None


def test_a_chief_that_can_not_learn_saves_for_others(tmp_path: Path, monkeypatch: Patch) -> None:
    """Worker 1 pushes until it sees a checkpoint of its own steps; then the chief gives up."""
    monkeypatch.setattr(training, "IDLE_S", 2.0)
    chief, other, nothing = beside_another(tmp_path)

    def push() -> None:
        while not checkpoint.by_step(tmp_path / "checkpoints"):
            other.push(nothing)

    assert_gives_up_after(chief, push)
    assert manifest(tmp_path).step > 0
    assert not other.attached().any()


def test_a_chief_saves_for_slow_others_as_long_as_they_are_there(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(training, "IDLE_S", 0.2)
    chief, other, nothing = beside_another(tmp_path)
    other.attach(print)

    def push() -> None:
        time.sleep(1.5)
        other.push(nothing)
        other.detach()

    assert_gives_up_after(chief, push)
    assert manifest(tmp_path).step > 0


def test_games_that_ended_just_before_a_stop_count(tmp_path: Path) -> None:
    chief = work(tmp_path, 1.0, max_env_steps=10**6)  # each env step is a game

    def stop() -> None:
        wait_until(lambda: any(row["env_steps"] for row in rows(tmp_path)), "the first games")
        chief._stop.set()

    threading.Thread(target=stop).start()
    chief.run()
    assert manifest(tmp_path).episodes == manifest(tmp_path).step > 0


def test_an_environment_whose_own_processes_a_signal_ends_is_no_failure(
    tmp_path: Path, caplog: Log
) -> None:
    """A signal to the group reaches these too, perhaps before this process has handled it."""
    chief = work(tmp_path, 1.0, max_env_steps=10**6)

    def fail(*_: Any) -> None:
        threading.Timer(0.2, chief._stop.set).start()
        raise EOFError

    with mock.patch.multiple(chief._envs, step=fail, close=mock.Mock(side_effect=BrokenPipeError)):
        chief.run()
        chief.close()
    assert manifest(tmp_path).reason == "interrupted"
    assert "after the signal the environment raised an error: " in caplog.text
    assert "Traceback" not in caplog.text


def test_a_run_whose_last_checkpoint_fails_has_failed(tmp_path: Path, monkeypatch: Patch) -> None:
    chief = work(tmp_path, 1.0)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(checkpoint, "write", mock.Mock(side_effect=full))
    with pytest.raises(FatalError, match="its last checkpoint could not be written: make room"):
        chief.run()


def test_a_worker_that_starts_again_plays_other_games(tmp_path: Path) -> None:
    here, seeds = InProcessCluster(num_ps=1, num_workers=1), list[int]()
    for _ in range(2):
        chief = work(tmp_path, 1.0, here=here)
        seeds.append(chief._make_player.keywords["seed"])
        chief.run()
    assert seeds[0] != seeds[1]


def test_a_last_row_is_not_written_twice(tmp_path: Path) -> None:
    """The second would say that nothing was played since the first."""
    chief = work(tmp_path, 1.0, log_interval_s=0.05, max_env_steps=10**6)
    write = chief._write_row

    def write_and_stop(**how: Any) -> None:
        write(**how)
        chief._stop.set()

    with mock.patch.object(chief, "_write_row", write_and_stop):
        chief.run()
    (row,) = (row for row in rows(tmp_path) if "worker/env_steps_per_s" in row)
    assert row["worker/env_steps_per_s"] > 0


def test_environments_that_fail_to_close_are_only_logged(tmp_path: Path, caplog: Log) -> None:
    envs = make_envs([[Script((1.0,))]], AutoresetMode.SAME_STEP)
    chief = worker(small_config(max_env_steps=8), tmp_path, lambda *_: envs)
    chief.run()
    with mock.patch.object(envs, "close", side_effect=ValueError("no handle")):
        chief.close()
    assert "closing the environments failed" in caplog.text
    assert "ValueError: no handle" in caplog.text


def test_drops_that_are_not_in_a_row_are_counted_and_forgiven(tmp_path: Path) -> None:
    work(tmp_path, 1.0, NAN, NAN, max_dropped_rollouts=3).run()
    assert rows(tmp_path)[-1]["env_steps"] == 40
    assert rows(tmp_path)[-1]["drops/rollouts"] == 78


@pytest.mark.parametrize("fault", [OSError("no\ncamera"), SystemExit("no camera")])
def test_what_an_environment_raises_while_it_is_made_is_its_own_fault(
    tmp_path: Path, fault: BaseException
) -> None:
    def fail(*_: Any) -> Any:
        raise fault

    kind = type(fault).__name__
    with pytest.raises(PlayError, match=rf"test_training.py:\d+: {kind}: no camera"):
        worker(small_config(), tmp_path, fail)


@pytest.mark.parametrize("others", [{"hidden_sizes": (5,)}, {"normalize_rewards": True}])
def test_a_worker_with_other_flags_than_the_chief_is_refused(
    tmp_path: Path, others: dict[str, Any]
) -> None:
    here = InProcessCluster(num_ps=1, num_workers=2)
    work(tmp_path, 1.0, here=here)
    config = small_config(**others)
    of = agent(config, OBSERVATIONS, ACTIONS)
    given = of, here.store(config, 1, of), config, Stopwatch()
    refused("give every process the same flags", Learner, *given, seed=1)


def test_the_first_non_finite_input_is_named() -> None:
    for weights, observation, reward, cause in (
        *((NAN, NAN, NAN, "weights"), (0.0, INF, NAN, "observations")),
        *((0.0, 0.0, -INF, "rewards"), (0.0, 0.0, 3e38, "losses")),
    ):
        rollout = random_rollout(0)
        rollout.observations[1, 0, 2] = observation
        rollout.rewards[0, 1] = reward
        assert not_finite(rollout, np.array([1.0, weights])) == cause
    beyond_float32 = random_rollout(0)._replace(observations=np.full((5, 3, 2), 1e40))
    assert not_finite(beyond_float32, np.ones(2)) == "observations"


def test_workers_may_log_each_game_and_now_and_then_the_policy(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    logged: dict[str, Any] = {"log_games": True, "log_policy_every": 20, "learning_rate": 1e-9}
    work(tmp_path, 1.0, 2.0, 4.0, **logged).run()
    games = [line for line in caplog.messages if "ended" in line]
    assert games == ["a game ended with a return of 7 after 3 env steps"] * 13
    policies = [line for line in caplog.messages if line.startswith("step")]
    assert [line.split(":")[0] for line in policies] == ["step 20", "step 40"]
    found = not_none(re.fullmatch(r"step 20: policy ([\d. ]+)  V -?\d\.\d{3}", policies[0]))
    probabilities = list(map(float, found[1].split()))
    assert len(probabilities) == ACTIONS.n
    assert sum(probabilities) == pytest.approx(1.0, abs=5e-3)
