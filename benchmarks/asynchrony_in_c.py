"""Simulate one run with `asynchrony.c`, about a hundred times as fast as asynchrony_simulated.

    python -m benchmarks.asynchrony_in_c --preset cartpole --workers 16 --seed 101

Prints one line of JSON. This needs a C compiler, `cc`. It knows CartPole, Acrobot and Pendulum with
networks of two layers of 64 units. All settings of the launcher are flags here too; those of the
environment, the network and learning that the C program doesn't know are refused. `--set
NAME=NUMBER` changes those of the C program, such as `--set alone=4000`: see SETTINGS there.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.asynchrony_in_c")

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c.config import Config, command_line
from a3c.errors import A3CError, UserError
from a3c.process import console

SOURCE = Path(__file__).with_name("asynchrony.c")
TASKS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")  # as numbered in the program
_SAME = (  # settings with the same name in the C program
    *("epochs", "ratio_limit", "gamma", "gae_lambda", "advantage_horizon", "normalize_advantages"),
    *("reward_scale", "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("max_gradient_norm", "value_loss_weight", "entropy_weight"),
)
_KNOWN = {  # settings of environment, network and learning; all others must have their defaults
    *_SAME,
    *("env_id", "envs", "envs_per_worker", "network", "separate_value", "initial_log_deviation"),
    *("rollout_length", "shortest_rollout", "samples_per_step", "smallest_push", "minibatches"),
    *("learning_rate_schedule", "learning_rate_final", "anneal_start", "anneal_steps"),
    "predict_weights",
}


def program() -> Path:
    """The compiled program; compiles it if the source is newer."""
    binary = SOURCE.with_suffix(".bin")
    if not binary.exists() or binary.stat().st_mtime < SOURCE.stat().st_mtime:
        fresh = binary.with_suffix(f".{os.getpid()}")
        flags = ["-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-w"]
        subprocess.run(["cc", *flags, "-o", fresh, SOURCE, "-lm"], check=True)
        fresh.replace(binary)
    return binary


def _refuse_unknown(config: Config) -> None:
    """Raise UserError if a setting would have no effect in the C program."""
    unknown = {
        name: value
        for section in ("env", "network", "learning")
        for name, value in vars(getattr(config, section)).items()
        if name not in _KNOWN and value != getattr(getattr(Config(), section), name)
    }
    if config.env.env_id not in TASKS:
        unknown = {"env_id": config.env.env_id}
    elif config.network.network not in ("auto", "mlp"):
        unknown["network"] = config.network.network
    if unknown:
        flags = " ".join(command_line.flags_of(unknown))
        raise UserError(
            f"asynchrony_in_c doesn't know {flags}: leave this out, or use asynchrony_simulated"
        )


def settings(config: Config) -> dict[str, float]:
    """The settings of the C program by a configuration."""
    _refuse_unknown(config)
    learning, share = config.learning, config.share
    is_linear = learning.learning_rate_schedule == "linear"
    final = learning.learning_rate_final if is_linear else learning.learning_rate
    start, end = config.windows["anneal"]
    goal = config.run.stop_at_return
    return {
        "task": TASKS.index(config.env.env_id),
        "seed": config.run.seed,
        "mark": 1e9 if goal is None else goal,
        "max_env_steps": config.run.max_env_steps,
        "workers": config.cluster.workers,
        "envs": share.envs,
        "rollout_length": share.rollout_length,
        "minibatches": min(share.minibatches, share.samples),
        "samples_per_step": config.samples_per_step,
        "predict_weights": config.loads_predicted_weights,
        "pull": bool(learning.ratio_limit),
        "values_again": bool(learning.ratio_limit),  # also without predict_weights, unlike Learner
        "separate_value": config.network.separate_value,
        "initial_log_deviation": config.network.initial_log_deviation,
        "learning_rate_final": final,
        "anneal_start": start,
        "anneal_end": end,
        **{name: getattr(learning, name) for name in _SAME},
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="of the C program"
    )


def simulated(argv: Sequence[str] | None) -> dict[str, Any]:
    """Simulate the run of a command line; returns its result."""
    config, arguments = command_line.parse_config(
        argv, "asynchrony_in_c", "Simulate one run in C.", _add_arguments
    )
    given = [f"{name}={float(value)!r}" for name, value in settings(config).items()]
    program()  # a compilation doesn't count as time of the run
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [str(program()), *given, *arguments.set]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    wall_s = time.monotonic() - began
    return {**json.loads(done.stdout), "wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate one run and print its result."""
    print(json.dumps(simulated(argv)), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except A3CError as error:
        sys.exit(console.refuse("benchmarks.asynchrony_in_c", error))
