"""Decide whether a cluster on this machine gets a private network, and warn if it doesn't.

A TensorFlow server accepts connections on every interface and executes the graphs of any client.
"""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

from a3c.errors import UserError
from a3c.keeper import namespaces

_PROBE_TIMEOUT_S = 20.0
_DANGER = "whoever reaches the ports of this run can run code here"


class Decision(NamedTuple):
    """Whether the cluster gets a private network; if not, a warning for the user."""

    isolated: bool
    warning: str | None = None


def decide(wanted: str, *, across_hosts: bool = False) -> Decision:
    """Decide by the value of `--isolation`; UserError if isolation is required but impossible."""
    if across_hosts:
        guard = "guard the network between the hosts"
        return Decision(False, f"{guard}: {_DANGER.replace('here', 'on them')}")
    if wanted == "off":
        return Decision(False, f"not isolated, as --isolation off asks for: {_DANGER}")
    reason = why_impossible()
    if reason is None:
        return Decision(True)
    if wanted == "on":
        raise UserError(
            f"--isolation on: this machine gives us no network of our own ({reason}): "
            "allow user namespaces, or give --isolation off where every user and host is trusted"
        )
    return Decision(False, f"not isolated, as this machine forbids it ({reason}): {_DANGER}")


def why_impossible() -> str | None:
    """The reason why this machine can't make a private network; None if it can.

    A child process tries to make one: this process may have threads, and Linux refuses a new user
    namespace to a process with threads.
    """
    command = [sys.executable, "-I", "-S", namespaces.__file__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stdout.strip() or done.stderr.strip() or "no reason given").splitlines()[-1]
