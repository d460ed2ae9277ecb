"""Whether a cluster of this machine gets a network of its own, and what it means where it doesn't.

A TensorFlow server takes connections on every interface, and obeys whoever connects.
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
    """Whether the cluster gets a network of its own; where not, a line about it for people."""

    isolated: bool
    warning: str | None = None


def decide(wanted: str, *, across_hosts: bool = False) -> Decision:
    """What becomes of `--isolation`; raises UserError where it is wanted and impossible."""
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
    """What stands against a network of our own; found out by making one, in a process of its own.

    This process may have threads, and couldn't.
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
