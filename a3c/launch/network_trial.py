"""Test the user's own network in a separate process before the cluster starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from a3c.config import Config, command_line, own_code
from a3c.config.own_code import networks
from a3c.errors import EXIT_OK, EXIT_USAGE, UserError
from a3c.process.environment import process_environment
from a3c.run.rundir import REPOSITORY

if TYPE_CHECKING:
    from gymnasium.spaces import Space

TIMEOUT_S = 300.0


def check_network(config: Config, space: Space[Any]) -> None:
    """Raise UserError if the network can't take these observations, or the user's own one fails.

    The user's own network is tested in a separate process, which imports TensorFlow and takes some
    seconds.
    """
    place = config.network.network
    module, colon, _ = place.partition(":")
    if not colon:
        from gymnasium.spaces import Box  # slow to import, and the verbs do not need it

        from a3c.net.observations import check_side

        known = networks().get(place)
        if known and isinstance(space, Box):
            check_side(place, known.min_side, space)
        return
    own_code.check_source(module, f"network {place}")
    command = [
        sys.executable,
        str(REPOSITORY / "model.py"),
        "--check",
        *command_line.to_flags(config),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=process_environment(os.environ, 1),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"network {place}: trying it took more than {TIMEOUT_S:g} s: mend it"
        ) from None
    if done.returncode != EXIT_OK:
        raise UserError(_what_it_said(place, done))


def _what_it_said(place: str, done: subprocess.CompletedProcess[str]) -> str:
    said = done.stderr.strip().splitlines() or ["it said nothing"]
    line = said[-1].removeprefix("model.py: ")
    if done.returncode == EXIT_USAGE:
        return line
    return f"network {place}: trying it ended with {done.returncode} ({line}): mend it"
