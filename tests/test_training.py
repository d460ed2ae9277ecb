"""A worker's life in this process, over real gRPC, with an environment that goes as written."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import model
from a3c.cluster.topology import Task
from a3c.errors import FatalError, PlayError
from a3c.learn import training
from a3c.learn.agent import Agent
from a3c.learn.training import Worker, not_finite
from a3c.process.heartbeat import Heartbeat
from a3c.process.signals import StopRequest
from a3c.run import checkpoint
from tests.clusters import InProcessCluster, flat, push_of, small_config
from tests.scripted import ACTIONS, OBSERVATIONS, Script, make_envs

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """A chief in a cluster of its own that plays one game again and again."""

    def start(
        rewards: tuple[float, ...] = (1.0,),
        *,
        make: Any = None,
        here: InProcessCluster | None = None,
        **settings: Any,
    ) -> Worker:
        here = here or InProcessCluster(num_ps=1, num_workers=1)
        server = here.servers["worker", 0]
        monkeypatch.setattr(training, "start_server", lambda *_: server)
        short = {"rollout_length": 1, "max_env_steps": 40, "envs_per_worker": 1}
        config = small_config(**{**short, **settings})
        games = [[Script(rewards)]]
        return Worker(
            here.cluster,
            Task("worker", 0),
            config,
            tmp_path,
            make_envs=make or (lambda *_: make_envs(games, AutoresetMode.SAME_STEP)),
            build_network=model.build,
            stop=StopRequest(),
            heartbeat=Heartbeat(None),
        )

    return start


def rows(run_dir: Path) -> list[dict[str, Any]]:
    text = (run_dir / "metrics" / "worker-0.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("poison", [NAN, INF])
def test_a_worker_whose_rollouts_are_all_dropped_gives_up_and_says_why(
    work: Callable[..., Worker], tmp_path: Path, poison: float
) -> None:
    # Three good steps, then nothing but poison.
    worker = work((1.0, 2.0, 3.0, *[poison] * 400), max_dropped_rollouts=7)
    with pytest.raises(FatalError) as left:
        worker.run()
    assert str(left.value) == (
        "dropped 7 rollouts in a row, because the rewards were not finite: mend the environment, "
        "which gives them, or give a --reward-clip; --max-dropped-rollouts sets the limit"
    )
    assert left.value.exit_code == 70
    assert rows(tmp_path)[-1]["drops/rollouts"] == 7
    assert rows(tmp_path)[-1]["env_steps"] == 3
    found = checkpoint.newest_valid(tmp_path / "checkpoints")
    assert found is not None, "what was learned before is kept"
    assert found[1].step == 3


def test_a_chief_that_can_not_learn_saves_for_the_others_for_as_long_as_they_push(
    work: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 1 pushes until it sees a checkpoint of its own steps; then the chief gives up."""
    monkeypatch.setattr(training, "IDLE_S", 2.0)
    here = InProcessCluster(num_ps=1, num_workers=2)
    settings = {"max_dropped_rollouts": 2, "checkpoint_interval_s": 0.2, "max_env_steps": 10**9}
    chief = work((NAN,) * 400, here=here, **settings)
    network = model.build(OBSERVATIONS, ACTIONS, small_config().network)
    of = Agent(network, OBSERVATIONS, small_config(), seed=1)
    other = here.store(small_config(), 1, of)
    nothing = np.zeros(flat(of).size, np.float32)

    def push() -> None:
        while not checkpoint.steps(tmp_path / "checkpoints"):
            other.push(push_of(nothing, 1, learning_rate=0.0))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        pushing = pool.submit(push)
        with pytest.raises(FatalError, match="dropped 2 rollouts in a row"):
            chief.run()
    assert pushing.exception() is None
    found = checkpoint.newest_valid(tmp_path / "checkpoints")
    assert found is not None
    assert found[1].step > 0
    assert not other.attached().any()


def test_drops_that_are_not_in_a_row_are_counted_and_forgiven(
    work: Callable[..., Worker], tmp_path: Path
) -> None:
    work((1.0, NAN, NAN), max_dropped_rollouts=3).run()
    assert rows(tmp_path)[-1]["env_steps"] == 40
    assert rows(tmp_path)[-1]["drops/rollouts"] == 78


def test_what_an_environment_raises_while_it_is_made_is_its_own_fault(
    work: Callable[..., Worker],
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no\ncamera")

    with pytest.raises(PlayError, match=r"test_training.py:\d+: OSError: no camera"):
        work(make=fail)


@pytest.mark.parametrize(
    ("weights", "observation", "reward", "culprit"),
    [
        (NAN, NAN, NAN, "weights"),
        (0.0, INF, NAN, "observations"),
        (0.0, 0.0, -INF, "rewards"),
        (0.0, 0.0, 3e38, "losses"),
    ],
)
def test_the_culprit_is_what_the_rest_follows_from(
    weights: float, observation: float, reward: float, culprit: str
) -> None:
    from tests.test_learner import random_rollout

    rollout = random_rollout(0)
    rollout.observations[1, 0, 2] = observation
    rollout.rewards[0, 1] = reward
    assert not_finite(rollout, np.array([1.0, weights])) == culprit


def test_workers_may_log_each_game_and_now_and_then_the_policy(
    work: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    work((1.0, 2.0, 4.0), log_games=True, log_policy_every=20, learning_rate=1e-9).run()
    games = [line for line in caplog.messages if "ended" in line]
    assert games == ["a game ended with a return of 7 after 3 env steps"] * 13
    policies = [line for line in caplog.messages if line.startswith("step")]
    assert [line.split(":")[0] for line in policies] == ["step 20", "step 40"]
    found = re.fullmatch(r"step 20: policy ([\d. ]+)  V -?\d\.\d{3}", policies[0])
    assert found
    probabilities = list(map(float, found[1].split()))
    assert len(probabilities) == ACTIONS.n
    assert sum(probabilities) == pytest.approx(1.0, abs=5e-3)
