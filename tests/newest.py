"""Try the newest libraries that pyproject.toml allows, and say what breaks: `make next`.

An environment of its own gets them without the lock. `--beyond` also ignores the upper limits of
TensorFlow, gymnasium and ale-py, to learn early what their next releases break. This needs only
Python itself. It exits with 1 if something breaks.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
VENV = REPOSITORY / ".venv-next"
PYTHON = str(VENV / "bin" / "python")
PIP = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
WATCHED = ("tensorflow", "gymnasium", "ale-py")
TESTERS = ("hypothesis", "pytest")  # of the extra `dev`
PLAY = """
import envs, sys
from a3c.config import EnvConfig
envs.check(EnvConfig(sys.argv[1]))
"""
PYTEST = (PYTHON, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider")

CHECKS = {  # the order is that of what depends on what
    "import of TensorFlow": (*PYTEST, "tests/test_import_tensorflow.py"),
    "an Atari game": (PYTHON, "-W", "error", "-c", PLAY, "ALE/Pong-v5"),
    "a classic task": (PYTHON, "-W", "error", "-c", PLAY, "Pendulum-v1"),
    "losses and returns": (
        *(*PYTEST, "tests/test_losses.py", "tests/test_returns.py"),
        *("-k", "not finite_differences"),  # half a minute
    ),
    "private names": (*PYTEST, "tests/test_private_tensorflow.py"),
    "a short run": (
        *(PYTHON, "launch_cluster.py", "--env-id", "CartPole-v1", "--mode", "child"),
        *("--workers", "1", "--max-env-steps", "4000", "--evaluation-episodes", "2"),
        *("--run-dir", str(VENV / "run")),
    ),
}


class Outcome(NamedTuple):
    """What a command came to."""

    seconds: float
    reason: str | None  # why it broke; None where it passed


def main() -> int:
    """Install, list the versions, run the checks; returns 1 if something breaks."""
    parser = argparse.ArgumentParser(prog="make next", description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "--beyond",
        action="store_true",
        help=f"ignore pyproject's upper limits of {', '.join(WATCHED)}",
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="time for all of it (default: %(default)g)"
    )
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    allowed = dict(requirements(beyond=arguments.beyond))
    say(f"Python {platform.python_version()}")
    installed = install([name + limits for name, limits in allowed.items()], deadline)
    outcomes = {"installation": installed}
    if installed.reason is None:
        show_versions(allowed, deadline)
        outcomes |= {name: run(command, deadline) for name, command in CHECKS.items()}
    say(f"\n{'check':<24}{'seconds':>8}  result")
    for name, (seconds, reason) in outcomes.items():
        say(f"{name:<24}{seconds:>8.0f}  {reason or 'ok'}")
    failed = [name for name, outcome in outcomes.items() if outcome.reason]
    say(f"\nnext: {', '.join(failed)}: not passed" if failed else "\nnext: nothing breaks")
    return 1 if failed else 0


def requirements(*, beyond: bool) -> Iterator[tuple[str, str]]:
    """The project's libraries and what tests need: name with extras, and the allowed versions."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    developers = [r for r in project["optional-dependencies"]["dev"] if r.startswith(TESTERS)]
    for requirement in [*project["dependencies"], *developers]:
        name = re.split("[<>=]", requirement)[0]
        limits = requirement.removeprefix(name)
        if beyond and name.partition("[")[0] in WATCHED:
            limits = ",".join(each for each in limits.split(",") if not each.startswith("<"))
        yield name, limits


def install(wanted: list[str], deadline: float) -> Outcome:
    """Make the environment anew, with the newest of the wanted libraries."""
    made = run([sys.executable, "-m", "venv", "--clear", str(VENV)], deadline)
    if made.reason:
        return made
    done = run([*PIP, "install", "--quiet", "--no-compile", *wanted], deadline)
    return Outcome(made.seconds + done.seconds, done.reason)


def show_versions(allowed: dict[str, str], deadline: float) -> None:
    """Print a row for each watched library: what is locked, tried, allowed and published."""
    locked = versions((REPOSITORY / "requirements.lock").read_text())
    tried = versions(output([*PIP, "freeze"], deadline))
    limits = {name.partition("[")[0]: limit for name, limit in allowed.items()}
    row = "{:<24}{:>12}{:>12}{:>12}  {}"
    say("\n" + row.format("library", "locked", "tried", "newest", "allowed"))
    for name in WATCHED:
        published = re.search(r"\((.*)\)", output([*PIP, "index", "versions", name], deadline))
        newest = published[1] if published else "unknown"
        say(row.format(name, locked[name], tried[name], newest, limits[name]))


def versions(lines: str) -> dict[str, str]:
    """The versions in a list of `name==version`."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lines, re.MULTILINE))


def run(command: list[str] | tuple[str, ...], deadline: float) -> Outcome:
    """Run a command in the repository until it ends or the time is over."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(0.0, deadline - began),
        )
    except subprocess.TimeoutExpired:
        return Outcome(time.monotonic() - began, "no result: the time is over")
    reason = cause(done.stdout) if done.returncode else None
    return Outcome(time.monotonic() - began, reason)


def output(command: list[str], deadline: float) -> str:
    """What a command prints; nothing if it takes too long."""
    try:
        left_s = max(0.0, deadline - time.monotonic())
        done = subprocess.run(command, capture_output=True, text=True, timeout=left_s)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def cause(said: str) -> str:
    """The line of a failed command's output that says most: its last error, or its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line for line in lines if re.search(r"^(E  |ERROR|FAILED)|Error\b", line)]
    return "broke: " + (errors or lines)[-1][:160]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
