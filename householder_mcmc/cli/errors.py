"""What goes wrong, told in a line: by the user's input, or by an error of another library."""

__all__ = ["UsageError", "one_line"]


class UsageError(Exception):
    """What the user gave cannot be run."""


def one_line(error):
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
