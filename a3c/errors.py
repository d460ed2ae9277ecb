"""The errors that end a process, and the exit code each one maps to.

UserError        2   the user can correct it: the message names the value and the remedy
PlayError        1   the environment raised: restarted, but not without limit
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
    """A mistake in what the user gave; the message names the value and the remedy."""

    exit_code = EXIT_USAGE


class PlayError(A3CError):
    """The environment raised; a restart may help, and a crash loop ends."""

    exit_code = EXIT_CRASH


class RetryableError(A3CError):
    """Something outside this process is missing for now; its keeper restarts it."""

    exit_code = EXIT_RETRY


class FatalError(A3CError):
    """A bug or a fault that a restart can't repair."""

    exit_code = EXIT_FATAL


class UnplayableError(FatalError):
    """The environment gives nothing that can be learned from, and never will."""
