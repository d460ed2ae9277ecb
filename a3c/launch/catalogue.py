"""List presets, settings and environments, and complete command lines.

The completions come from the launcher's own parsers. `launch_cluster.py completion` prints a
function for bash (or zsh with bashcompinit), which calls the hidden verb `complete`. Every
completion starts a process, so nothing heavy is imported here.
"""

import argparse
import contextlib
import csv
import fnmatch
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence

from a3c.config import Config, command_line
from a3c.config.options import OPTIONS, flat
from a3c.errors import UserError
from a3c.process import process_records
from a3c.process.console import count, table
from a3c.run import rundir

RESULTS = rundir.REPOSITORY / "benchmarks" / "results"
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
    _print_settings(command_line.sources(arguments)[0])


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
    """The results of a preset's runs, with their commit, from the files of the benchmarks.

    They are the number of solved runs; for long runs the mean score of 100 whole games each.
    """
    if not RESULTS.exists():  # an installation without the benchmarks
        return "-"
    wanted = {"preset": preset, "workers": str(MEASURED_WITH), "flags": ""}
    runs = [row for row in _rows("real-workers.csv") if wanted.items() <= row.items()]
    if runs:
        solved = sum(row["solved"] == "True" for row in runs)
        return f"solved {solved} of {len(runs)}, median {_cost(runs)}"
    games: dict[str, dict[str, dict[str, str]]] = {}  # the last session of each run, by env_id
    for row in _rows("games/index.csv"):
        counts = row["mean"] and row["workers"] == str(MEASURED_WITH)
        if counts and command_line.preset_for(row["env_id"]) == preset:
            games.setdefault(row["env_id"], {})[row["run"]] = row
    lines = []
    for env_id, sessions in games.items():
        runs = list(sessions.values())
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


def _print_settings(layers: Sequence[tuple[str, command_line.Layer]]) -> None:
    values, defaults = flat(command_line.merge([layer for _, layer in layers])), flat(Config())
    rows: list[tuple[str, ...]] = [("setting", "value", "from")]
    for name, value in values.items():
        origins = [origin for origin, layer in layers if (name, value) in layer.items()]
        unsaid = "default" if value == defaults[name] else "other settings"
        origin = origins[-1] if origins else unsaid
        rows.append((OPTIONS[name].flag, command_line.plain(value), origin))
    print("\n".join(table(rows)))


# The function runs only `python launch_cluster.py`, `launch_cluster.py` or `a3c`, nothing else.
BASH = r"""_a3c_complete() {
    local command=("${COMP_WORDS[0]}") IFS=$'\n'
    [[ ${command[0]} =~ (launch_cluster\.py|(^|/)a3c)$ ]] || command+=("${COMP_WORDS[1]}")
    [[ ${command[${#command[@]} - 1]} =~ (launch_cluster\.py|(^|/)a3c)$ ]] || return
    [[ $COMP_CWORD -ge ${#command[@]} ]] || return
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \
        COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        "${command[@]/#\~/$HOME}" complete 2>/dev/null))
}
complete -o bashdefault -o default -F _a3c_complete python python3 launch_cluster.py a3c
"""


def complete(line: str, parsers: Mapping[str, argparse.ArgumentParser], breaks: str) -> list[str]:
    """The completions of a line up to the cursor, in bash's format; a parser for each verb.

    Bash replaces only the text after the last of the characters `breaks`. Other programs may have
    removed `=` or `:` from these.
    """
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        return []
    current = words.pop() if words and not line[-1:].isspace() else ""
    ours = r"launch_cluster\.py$|(^|/)a3c$"
    scripts = [i for i, word in enumerate(words[:2]) if re.search(ours, word)]
    found = candidates(words[scripts[0] + 1 :], current, parsers) if scripts else []
    typed = 1 + max((current.rfind(c) for c in "=:" if c in breaks), default=-1)
    fitting = [word[typed:] for word in sorted(found) if word.startswith(current)]
    return [re.sub(r"([^\w@%+=:,./-])", r"\\\1", word, flags=re.ASCII) for word in fitting]


def candidates(
    words: Sequence[str], current: str, parsers: Mapping[str, argparse.ArgumentParser]
) -> Iterable[str]:
    """The words that may come after `words`, where `current` is typed already."""
    if not words and not current.startswith("-"):
        return [*parsers, "keep"]
    if words[:1] == ["keep"]:  # Kubernetes and Slurm give it, so few type its flags
        return []
    parser = parsers["start"]
    if words and words[0] in parsers:
        parser, words = parsers[words[0]], words[1:]
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    flag, equals, _ = current.partition("=")
    if equals and flag in flags:
        return [f"{flag}={value}" for value in values(flags[flag], words)]
    before = flags.get(words[-1]) if words else None
    if before is not None and before.nargs != 0:
        return values(before, words)
    if current.startswith("-"):
        return flags
    places = [action for action in parser._actions if not action.option_strings]
    return [word for place in places for word in values(place, words)]


def values(action: argparse.Action, words: Sequence[str]) -> list[str]:
    """The values that an argument takes; empty if it takes any text, or a file name."""
    option = OPTIONS.get(action.dest.removeprefix("config."))
    if option is not None and option.name == "env_id":
        import gymnasium

        from a3c.env import atari  # registers its games

        games = {env_id: atari.find(env_id) for env_id in gymnasium.registry}
        # Without the hundreds of old ids of Atari games.
        return [env_id for env_id, game in games.items() if game is None or game.env_id == env_id]
    if option is not None:
        return list(option.choices)
    if action.choices is not None:
        return list(action.choices)
    if action.dest == "preset":
        return ["auto", "none", *command_line.preset_names()]
    if action.dest == "name":  # of `presets`
        return command_line.preset_names()
    if action.dest == "run":
        return [run.name for run in rundir.all_runs()]
    if action.dest == "process":  # of the run that `--run` names, or of the newest run
        name = words[words.index("--run") + 1] if "--run" in words[:-1] else None
        with contextlib.suppress(UserError):
            run = rundir.find(name)
            return [record.name for record in process_records.read_records(run.path)]
    return []
