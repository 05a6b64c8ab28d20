"""Ctrl-C between steps: a run ends where its log is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequestedError(Exception):
    """The user asked the run to end."""


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back inside the context; the function that it gives raises `StopRequestedError` after one.

    A second Ctrl-C is not held back. Outside the main thread, where Python has no signals, nothing is held.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def check() -> None:
        if asked:
            raise StopRequestedError

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
