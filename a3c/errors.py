"""The errors that end a process, and the exit code each one maps to.

UserError        2   the user can correct it: the message names the value and the remedy
PlayError        1   the environment raised: its keeper restarts it, but not without limit
RetryableError  75   worth another try: the ps is lost, or a peer is not there yet
FatalError      70   a fault that a restart can't repair
"""

EXIT_OK = 0
EXIT_CRASH = 1
EXIT_USAGE = 2
EXIT_FATAL = 70
EXIT_RETRY = 75


class A3CError(Exception):
    """An error with a one-line message for people and an exit code for machines."""

    exit_code = EXIT_FATAL


class UserError(A3CError):
    exit_code = EXIT_USAGE


class PlayError(A3CError):
    exit_code = EXIT_CRASH


class RetryableError(A3CError):
    exit_code = EXIT_RETRY


class FatalError(A3CError):
    """A bug or a fault that a restart can't repair."""


class UnplayableError(FatalError):
    """The environment gives nothing that can be learned from, and never will."""


def reason_of(error: Exception) -> str:
    """Its reason in one line.

    TensorFlow writes headings before it, which end in a colon, and after it the graph's node.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.endswith((":", "="))] or [repr(error)]
    nodes = [i for i, line in enumerate(lines) if i and line.startswith("[[{{node")]
    return lines[nodes[0] - 1 if nodes else 0]
