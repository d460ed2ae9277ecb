"""The study of how learning depends on the number of workers: its simulation and its table."""

import operator
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

import envs
import model
from a3c.config import Config
from a3c.config.command_line import parse_config
from a3c.learn.rollout import Rollout
from a3c.plot import diagram, pictures
from benchmarks import asynchrony, asynchrony_in_c, asynchrony_pictures, machine
from benchmarks.asynchrony import REAL, SIMULATED, Row
from benchmarks.asynchrony_simulated import Simulation
from benchmarks.judge import Judge
from tests import refused
from tests.clusters import config
from tests.graphs import log_softmax
from tests.runs import REPOSITORY, call

HOW = ("2026-11-24 20:00:00", "abc", "2 cores, some processor", 1.5, "cartpole", 1, "shared")
FIRST = Row(*HOW, SIMULATED, 101, True, 80_000, 0.0, 625, 12.5, 10.0, False, "")


SMALL = {"env_id": "CartPole-v1", "network": "mlp", "hidden_sizes": [8], "max_env_steps": 4000}


def stale(workers: int, **settings: object) -> float:
    usual = SMALL | {"envs": 4, "rollout_length": 8, "shortest_rollout": 4, "max_env_steps": 3000}
    return Simulation(config(workers=workers, **{**usual, **settings})).run().staleness


def test_staleness_grows_with_workers_unless_they_share_a_step() -> None:
    alone, few, many = (
        stale(n, envs_per_worker=4, minibatches=1, samples_per_step=0) for n in (1, 4, 16)
    )
    assert alone == 0
    assert few == pytest.approx(3, abs=0.5)
    assert many == pytest.approx(15, abs=2.5)
    assert stale(4) < 2
    assert 1 < stale(16) < 2.5


@pytest.mark.parametrize("task", asynchrony_pictures.PARAMETERS)
def test_the_projection_knows_the_size_of_each_presets_network(task: str) -> None:
    chosen = asynchrony.preset(task)
    space, actions = envs.check(chosen.env)
    assert isinstance(space, Box)
    rows = diagram.layer_table(model.build(space, actions, chosen.network), space)
    assert asynchrony_pictures.PARAMETERS[task] == diagram.total_parameters(rows)


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
SHORT = ["--preset=pendulum", "--workers=16", "--seed=7", "--max-env-steps=4000"]


@pytest.mark.parametrize("language", ["Python", pytest.param("C", marks=needs_cc)])
def test_a_seed_determines_the_whole_simulated_run(language: str) -> None:
    def run() -> dict[str, Any]:
        if language == "C":
            return asynchrony_in_c.simulated(SHORT)
        return Simulation(config(workers=3, **SMALL)).run()._asdict()

    first, second = run(), run()
    for name in ("env_steps", "staleness", "updates", "virtual_s", "mean_return_100"):
        assert first.get(name) == second.get(name)
    assert 4000 <= first["env_steps"] < 4100


def in_c(parameters: dict[str, np.ndarray]) -> np.ndarray:
    """Parameters in the order of the C program: a row of weights and a bias for each output."""
    trunks = [parameters[name] for name in parameters if "hidden" in name]
    heads = [
        np.vstack([parameters[f"{name}/weights"], parameters[f"{name}/biases"]]).T
        for name in ("policy", "value")
    ]
    if "policy/log_deviation" in parameters:
        heads.append(parameters["policy/log_deviation"])
    return np.concatenate([np.ravel(part) for part in [*trunks, *heads]]).astype(np.float32)


def log_probabilities(rollout: Rollout) -> np.ndarray:
    """The log-probability of each action when it was played."""
    given, actions = rollout.policy_parameters, rollout.actions
    if actions.dtype == np.float32:  # a mean and a log-deviation
        mean, log_deviation = given[..., :1], given[..., 1:]
        z = (actions - mean) / np.exp(log_deviation)
        return -0.5 * z**2 - log_deviation - 0.5 * np.log(2 * np.pi)
    return np.take_along_axis(log_softmax(given), actions[..., None], axis=-1)


def learnt_in_c(settings: Config, given: list[np.ndarray], rollouts: int) -> np.ndarray:
    """The weights that the program in C learns from first weights and rollouts."""
    numbers = {**asynchrony_in_c.settings(settings), "replay": rollouts}
    done = subprocess.run(
        [asynchrony_in_c.program(), *(f"{name}={value:.17g}" for name, value in numbers.items())],
        input=np.concatenate(given).astype(np.float32).tobytes(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return np.frombuffer(done.stdout, np.float32)


@needs_cc
@pytest.mark.parametrize(
    "flags", ["cartpole", "acrobot", "pendulum", "cartpole --ratio-limit=0 --epochs=1"]
)
def test_the_program_in_c_learns_what_the_cluster_learns_from_rollouts(flags: str) -> None:
    words = f"--preset={flags} --workers=3 --minibatches=1".split()
    settings, _ = parse_config(words, "", "")
    simulation = Simulation(settings)
    plays = [(learner, player.rollouts()) for learner, player in simulation.workers]
    given = [in_c(simulation.parameters())]
    rounds = 3
    for _ in range(rounds):
        # All play before the first of them learns, so the others learn from older weights' games.
        for learner, rollout in [(learner, next(rollouts)) for learner, rollouts in plays]:
            parts = [rollout.observations, rollout.next_observations]
            # Without a ratio limit the probabilities of play have no effect.
            played = log_probabilities(rollout) * bool(settings.learning.ratio_limit)
            parts += [rollout.actions, rollout.rewards, rollout.discounts, played, rollout.mask]
            given += [np.ravel(part).astype(np.float32) for part in parts]
            learner.update(rollout)
    learnt = learnt_in_c(settings, given, rounds * len(plays))
    expected = in_c(simulation.parameters())
    assert np.abs(expected - given[0]).max() > 0.01
    np.testing.assert_allclose(learnt, expected, rtol=0, atol=1e-5)


@needs_cc
def test_a_rollout_without_samples_makes_no_step_in_c() -> None:
    flags = ["--preset=cartpole", "--workers=1", "--samples-per-step=0", "--minibatches=1"]
    settings, _ = parse_config(flags, "", "")
    share, weights = settings.share, np.full(asynchrony_pictures.PARAMETERS["cartpole"], 0.01)
    rollout = np.zeros(share.samples * (4 + 5) + share.envs * 4)  # a mask of zeros, too
    assert (learnt_in_c(settings, [weights, rollout], 1) == weights.astype(np.float32)).all()


def test_the_program_in_c_refuses_what_it_does_not_know() -> None:
    for flag in (
        *("--env-id=CartPole-v0", "--optimizer=sgd", "--network=mlp-lstm", "--hidden-sizes=32"),
        *("--activation=relu", "--kl-limit=0.02", "--value-clip=1", "--entropy-weight-final=0"),
        *("--epsilon-greedy=0.1", "--normalize-observations", "--critic-learning-rate-scale=2"),
        *("--reward-clip=1", "--learning-rate-range 1e-4 1e-2"),
    ):
        settings, _ = parse_config(["--preset=cartpole", *flag.split()], "", "")
        refused(flag.split("=")[0].split()[0], asynchrony_in_c.settings, settings)


def test_a_run_is_solved_by_its_last_100_games_and_collapses_at_half_of_its_progress() -> None:
    judge = Judge(475.0)
    assert not judge.add([20.0] * 100)
    assert not judge.add([500.0] * 94)
    assert judge.add([500.0])
    assert not judge.collapsed
    never_far = Judge(100.0)
    never_far.add([0.0] * 100 + [40.0] * 100 + [0.0] * 100)
    assert not never_far.collapsed
    judge = Judge(100.0)
    judge.add([0.0] * 100 + [60.0] * 100 + [0.0] * 49)
    assert not judge.collapsed
    judge.add([0.0] * 2)
    assert judge.collapsed


def test_an_interrupted_study_continues(tmp_path: Path) -> None:
    path, earlier = tmp_path / "t.csv", FIRST._replace(workers=2, remedy="short", seed=1)
    machine.append(path, [earlier])
    flags = ["--name", "short", "--tasks", "cartpole", "--workers", "2", "--at-once", "2"]
    command = [sys.executable, "-m", "benchmarks.asynchrony", "--output", str(path), *flags]
    short = ["--seeds", "1-2", "--", "--max-env-steps", "1000"]
    done = call(*command, *short, cwd=REPOSITORY, timeout=300, check=True)
    assert "2 runs, of which 1 are in" in done.stdout
    first, second = asynchrony.read(path)
    assert first == earlier
    case = operator.attrgetter(*asynchrony.Case._fields)  # by which a study knows its runs
    assert case(second) == case(earlier._replace(seed=2))
    assert not second.solved
    assert 1000 <= second.env_steps < 1200
    assert second.flags == "--max-env-steps 1000"


@pytest.mark.parametrize("task", asynchrony.LIMITS)
def test_remedies_are_settings_of_the_launcher_and_of_the_program_in_c(task: str) -> None:
    for name in asynchrony.REMEDIES:
        flags = [f"--preset={task}", "--workers=16", *asynchrony.remedy_flags(name, task, 16)]
        settings, _ = parse_config(flags, "", "")
        if settings.env.env_id in asynchrony_in_c.TASKS:
            asynchrony_in_c.settings(settings)


def test_tables_and_pictures_show_medians_and_ratios_to_one_worker(tmp_path: Path) -> None:
    rows = [
        FIRST._replace(workers=n, seed=seed, env_steps=80_000 + 1000 * n + seed, kind=kind)
        for kind in (SIMULATED, REAL)
        for n in (1, 4, 16)
        for seed in (101, 102, 103)
    ]
    unsolved = FIRST._replace(remedy="every-push-a-step", env_steps=400_000, solved=False)
    rows += [unsolved._replace(workers=n) for n in (1, 16)]
    found = asynchrony_pictures.summarise(rows)
    by = {(one.kind, one.remedy, one.workers): one for one in found}
    assert str(by[SIMULATED, "every-push-a-step", 16]) == "> 400k"  # it wasn't solved
    shared = by[SIMULATED, "shared", 16]
    assert (shared.median, shared.low, shared.high) == (96_102, 96_101, 96_103)
    lines = asynchrony_pictures.by_workers(found, "shared", SIMULATED)
    assert lines[0] == "| task | 1 worker | 4 workers | 16 workers |"
    assert lines[2] == ("| cartpole | 81k (3 of 3) | 84k (1.04 ×, 3 of 3) | 96k (1.18 ×, 3 of 3) |")
    paper = asynchrony_pictures.projected(found)
    assert paper[0].wall_s > paper[1].wall_s
    assert [one.limit for one in paper] == ["workers", "workers", "ps"]
    figures = asynchrony_pictures.learning(found), asynchrony_pictures.times(paper)
    for name, figure in zip(("learning", "times"), figures, strict=True):
        assert pictures.save(figure, tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_page_has_a_place_for_its_tables_and_keeps_the_rest() -> None:
    page = "a\n<!-- table: x, y -->\n\nold\n\n<!-- end -->\nb\n<!-- table: z -->\n<!-- end -->\n"
    filled = machine.filled(page, {"x, y": ["| new |"], "unknown": ["| no |"]})
    assert filled == page.replace("old", "| new |")
    assert machine.filled(filled, {"x, y": ["| new |"]}) == filled
