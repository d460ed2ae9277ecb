"""Turns of workers that share cores: who takes part, who waits, and what ends a wait."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from a3c.cluster.topology import Cluster, Task
from a3c.learn import turns as module
from a3c.learn.turns import Turns, turns
from tests import Patch, not_none
from tests.clusters import config
from tests.runs import REPOSITORY, call, wait_until


@pytest.fixture(autouse=True)
def short(monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "FAST_S", 0.0)


HOSTS = Cluster(("h1:1",), tuple(f"{host}:{port}" for port in range(1, 6) for host in ("h1", "h2")))


def waits(turn: Turns) -> bool:
    """Whether a turn has to be waited for, which is then given back."""
    with turn as waited:
        return waited


def files(path: Path, cores: int, monkeypatch: Patch, **settings: object) -> list[str]:
    """The number in the name of the file that each worker of `HOSTS` locks; "" for no turns."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    chosen = config(**{"ratio_limit": 0.2, **settings})
    found = [turns(path, HOSTS, Task("worker", i), chosen) for i in range(10)]
    return [each.path.name[-1] if isinstance(each, Turns) else "" for each in found]


def test_workers_of_a_host_are_spread_over_its_cores(tmp_path: Path, monkeypatch: Patch) -> None:
    assert files(tmp_path, 2, monkeypatch) == [*"0011001100"]
    assert files(tmp_path, 4, monkeypatch) == [*"0011223300"]
    assert files(tmp_path, 4, monkeypatch, worker_threads=2) == [*"0011001100"]
    assert files(tmp_path, 5, monkeypatch) == [""] * 10  # each has a core
    assert files(tmp_path, 2, monkeypatch, ratio_limit=0.0) == [""] * 10
    assert files(tmp_path / "missing", 2, monkeypatch) == [""] * 10


def test_workers_with_cores_of_their_own_never_meet(tmp_path: Path, monkeypatch: Patch) -> None:
    """As where Slurm binds each task to a core."""
    found = []
    for core, worker in ((3, 0), (5, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, core=core: {core})
        found.append(turns(tmp_path, HOSTS, Task("worker", worker), config(ratio_limit=0.2)))
    paths = {each.path for each in found if isinstance(each, Turns)}
    assert len(paths) == 2


def test_a_worker_waits_for_its_turn_and_knows_it(tmp_path: Path) -> None:
    first, second = Turns(tmp_path / "turn"), Turns(tmp_path / "turn")
    with first as waited:
        assert not waited
        entered: list[bool] = []
        let_go = threading.Event()

        def take() -> None:
            with second as waited:
                entered.append(waited)
                let_go.wait(60)

        thread = threading.Thread(target=take)
        thread.start()
        assert not let_go.wait(0.3)
        assert not entered
    wait_until(lambda: entered == [True], "its turn")
    third = Turns(tmp_path / "turn")
    let_go.set()
    thread.join(60)
    assert not waits(third)


def test_a_process_that_dies_gives_up_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    hold = f"import os; from a3c.learn.turns import *; Turns(Path('{path}')).__enter__(); "
    call(sys.executable, "-c", hold + "os.kill(os.getpid(), 9)", cwd=REPOSITORY)
    assert not waits(Turns(path))


def test_a_worker_goes_on_while_another_hangs(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "TURN_TIMEOUT_S", 0.2)
    hanging, worker, other = (Turns(tmp_path / "turn") for _ in range(3))
    with hanging:
        assert waits(worker)
        monkeypatch.setattr(module, "TURN_TIMEOUT_S", 60.0)
        assert not any(waits(worker) for _ in range(3))
    wait_until(not_none(worker._lock).done, "the turn that came late")
    began = time.monotonic()
    waits(other)  # it was given up at once
    assert time.monotonic() - began < 30.0
    assert not waits(worker)


def test_fast_gradients_take_no_turns(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "FAST_S", 0.05)
    fast, slow = Turns(tmp_path / "turn"), Turns(tmp_path / "turn")
    waits(fast)
    with slow:
        began = time.process_time()
        while time.process_time() < began + 0.06:
            pass
    with slow as waited:  # it still takes turns
        assert not waited
        assert not waits(fast)
    with fast:
        assert not waits(Turns(tmp_path / "turn"))
