"""The errors that end a process, and the exit code each one maps to.

UserError        2   the user can correct it: the message names the value and the remedy
PlayError        1   the environment raised: the keeper restarts the process a few times
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
    """The worker can't learn from what the environment gives, and a restart doesn't help."""


def reason_of(error: Exception) -> str:
    """The reason of an error in one line.

    TensorFlow writes headings before the reason, which end in a colon or an equals sign, and the
    graph's node after it.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.endswith((":", "="))] or [repr(error)]
    nodes = [i for i, line in enumerate(lines) if i and line.startswith("[[{{node")]
    return lines[nodes[0] - 1 if nodes else 0]
