"""What there is to choose from: presets, settings and environments."""

import argparse
import csv
import fnmatch
import statistics
from collections.abc import Sequence

from a3c.config import command_line
from a3c.config.command_line import Layer
from a3c.config.options import OPTIONS, flat
from a3c.errors import UserError
from a3c.process.console import count, table
from a3c.run.rundir import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
MEASURED_WITH = 2  # workers


def presets(arguments: argparse.Namespace) -> None:
    if arguments.name:
        _print_settings([(f"preset {arguments.name}", command_line.read_preset(arguments.name))])
        return
    rows = [("preset", "environment", "goal", f"measured with {MEASURED_WITH} workers")]
    for name in command_line.preset_names():
        config = command_line.merge([command_line.read_preset(name)])
        games = ", ".join(command_line.patterns(name)) or config.env.env_id
        mark = config.run.stop_at_return
        rows.append((name, games, "-" if mark is None else f"{mark:g}", _measured(name)))
    print("\n".join(table(rows)))


def config(arguments: argparse.Namespace) -> None:
    layers, _ = command_line.sources(arguments)
    _print_settings(layers)


def environments(arguments: argparse.Namespace) -> None:
    import gymnasium

    from a3c.env import atari  # noqa: F401 - importing it registers the Atari games
    from a3c.env.environments import import_packages

    import_packages()
    pattern = arguments.pattern or "*"
    wanted = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    found = [i for i in gymnasium.registry if fnmatch.fnmatch(i.lower(), wanted.lower())]
    if not found:
        raise UserError(f"no environment matches {pattern}: `envs` alone lists all of them")
    for env_id in sorted(found):
        preset = command_line.preset_for(env_id)
        print(f"{env_id:40}  {f'preset {preset}' if preset else ''}".rstrip())


def _measured(preset: str) -> str:
    """What a preset's runs came to, and at which commit, from the files of the benchmarks.

    That is how many were solved, or the mean scores of the long runs, of 100 whole games each.
    """
    if not RESULTS.exists():  # an installation without the benchmarks
        return "-"
    wanted = {"preset": preset, "workers": str(MEASURED_WITH), "flags": ""}
    runs = [row for row in _rows("real-workers.csv") if wanted.items() <= row.items()]
    if runs:
        solved = sum(row["solved"] == "True" for row in runs)
        return f"solved {solved} of {len(runs)}, median {_cost(runs)}"
    finished = {  # the last session of each run
        row["run"]: row
        for row in _rows("games/index.csv")
        if row["mean"]
        and row["workers"] == str(MEASURED_WITH)
        and command_line.preset_for(row["env_id"]) == preset
    }
    lines = []
    for env_id in dict.fromkeys(row["env_id"] for row in finished.values()):
        runs = [row for row in finished.values() if row["env_id"] == env_id]
        mean = statistics.fmean(float(row["mean"]) for row in runs)
        lines.append(f"{env_id} {mean:,.1f} ({count(len(runs), 'seed')}) after {_cost(runs)}")
    return "; ".join(lines) or "not yet"


def _cost(runs: Sequence[dict[str, str]]) -> str:
    """The median env steps and seconds of runs, and the commit of the last one."""
    steps = statistics.median(float(row["env_steps"]) for row in runs)
    wall_s = statistics.median(float(row["wall_s"]) for row in runs)
    return f"{steps:,.0f} env steps in {wall_s:,.0f} s (commit {runs[-1]['commit'][:7]})"


def _rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _print_settings(layers: Sequence[tuple[str, Layer]]) -> None:
    values = flat(command_line.merge([layer for _, layer in layers]))
    rows: list[tuple[str, ...]] = [("setting", "value", "from")]
    for option in OPTIONS.values():
        setting = [
            name
            for name, layer in layers
            if option.name in layer and layer[option.name] == values[option.name]
        ]
        value = command_line.plain(values[option.name])
        rows.append((option.flag, value, setting[-1] if setting else "default"))
    print("\n".join(table(rows)))
