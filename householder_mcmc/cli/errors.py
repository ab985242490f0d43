"""Errors that the command line shows in one line: of the user's input, or of another library."""

__all__ = ["UsageError", "one_line"]


class UsageError(Exception):
    """What the user gave cannot be run."""


def one_line(error):
    """The type of an error and the first line of its message, as a text."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
