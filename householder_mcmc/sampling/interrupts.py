"""Ctrl-C while draws come: remembered, so that it is not lost inside of a callback, where Python ignores exceptions."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["interrupts"]


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """A context that gives a function: it raises KeyboardInterrupt if Ctrl-C was pressed in the context so far.

    A second Ctrl-C raises at once. In another thread than the main one, or where a program has a handler of its own,
    handlers are left as they are, and the function does nothing.
    """
    number = 0

    def remember(signum, frame):
        nonlocal number
        number += 1
        if number > 1:
            raise KeyboardInterrupt

    def check():
        if number:
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
