"""Shell completion of command lines, computed from the launcher's own parsers.

`launch_cluster.py completion` prints a function for bash (or zsh with bashcompinit), which calls
the hidden verb `complete`. Every completion starts a process, so nothing heavy is imported here.
"""

import argparse
import contextlib
import re
import shlex
from collections.abc import Iterable, Sequence

from a3c.config import command_line, options
from a3c.errors import UserError
from a3c.process import process_records
from a3c.run import rundir

# The function runs only `python launch_cluster.py`, `launch_cluster.py` or `a3c`, nothing else.
BASH = r"""_a3c_complete() {
    local command=("${COMP_WORDS[0]}") IFS=$'\n'
    [[ ${command[0]} =~ (launch_cluster\.py|(^|/)a3c)$ ]] || command+=("${COMP_WORDS[1]}")
    [[ ${command[${#command[@]} - 1]} =~ (launch_cluster\.py|(^|/)a3c)$ ]] || return
    [[ $COMP_CWORD -ge ${#command[@]} ]] || return
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \
        "${command[@]/#\~/$HOME}" complete 2>/dev/null))
}
complete -o bashdefault -o default -F _a3c_complete python python3 launch_cluster.py a3c
"""

_OURS = re.compile(r"launch_cluster\.py$|(^|/)a3c$")
_BREAKS = re.compile(r".*[=:]", re.DOTALL)  # bash completes only the part after = or :
_NOT_PLAIN = re.compile(r"([^\w@%+=:,./-])", re.ASCII)


def answer(line: str, parsers: dict[str, argparse.ArgumentParser]) -> list[str]:
    """The completions of a line up to the cursor, in bash's format; a parser for each verb."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        return []
    current = words.pop() if words and not line[-1:].isspace() else ""
    scripts = [i for i, word in enumerate(words[:2]) if _OURS.search(word)]
    found = candidates(words[scripts[0] + 1 :], current, parsers) if scripts else []
    typed = _BREAKS.match(current)
    return [
        _NOT_PLAIN.sub(r"\\\1", word[typed.end() if typed else 0 :])
        for word in sorted(found)
        if word.startswith(current)
    ]


def candidates(
    words: Sequence[str], current: str, parsers: dict[str, argparse.ArgumentParser]
) -> Iterable[str]:
    """The words that may come after `words`, where `current` is typed already."""
    if not words and not current.startswith("-"):
        return parsers
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
    option = options.OPTIONS.get(action.dest.removeprefix("config."))
    if option is not None:
        return env_ids() if option.name == "env_id" else list(option.choices)
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


def env_ids() -> list[str]:
    """Gymnasium's environment ids, without the hundreds of old ids of Atari games."""
    import gymnasium

    from a3c.env import atari  # registers its games

    games = {env_id: atari.find(env_id) for env_id in gymnasium.registry}
    return [env_id for env_id, game in games.items() if game is None or game.env_id == env_id]
