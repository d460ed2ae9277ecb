"""Whole runs that learn, on tasks small enough for every change."""

import json
from pathlib import Path
from typing import Any

from tests.runs import call, launcher


def trained(path: Path, *arguments: str) -> dict[str, Any]:
    """Train with two workers; the run's summary."""
    command = launcher("--workers", "2", "--run-dir", str(path), *arguments)
    call(*command, check=True, timeout=900)
    return json.loads((path / "summary.json").read_text())


def test_cartpole_is_solved_within_200k_env_steps_by_one_of_two_seeds(tmp_path: Path) -> None:
    """About one run in ten takes longer, whatever its seed."""
    settings = ("--preset", "cartpole", "--max-env-steps", "200000")
    for seed in ("1", "2"):
        summary = trained(tmp_path / seed, *settings, "--seed", seed)
        if summary["solved"]:
            break
    assert summary["solved"], summary
    assert summary["mean_return_100"] >= 475


def test_a_memory_task_is_solved_with_an_lstm(tmp_path: Path) -> None:
    summary = trained(tmp_path / "run", "--preset", "memory", "--max-env-steps", "200000")
    assert summary["solved"], summary


def test_continuous_actions_learn(tmp_path: Path) -> None:
    """Pendulum, not to the end: a random policy scores about -1,200."""
    settings = ("--preset", "pendulum", "--max-env-steps", "900000", "--stop-at-return", "-700")
    summary = trained(tmp_path / "run", *settings)
    assert summary["solved"], summary
