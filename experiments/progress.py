"""Progress of a replay on the terminal. The driver knows no wall clock: whether to draw is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Report = Callable[[int, int], None]
"""Takes the time on the run's clock in ns, and the number of requests that have ended."""

Reporter = Callable[[int], AbstractContextManager[Report]]
"""Takes the number of requests; the context gives the function to report with."""


@contextmanager
def no_progress(total: int) -> Iterator[Report]:
    """Draw nothing."""
    yield lambda now, done: None


@contextmanager
def terminal_progress(total: int) -> Iterator[Report]:
    """A bar on standard error with simulated time, requests done and the expected end; nothing if piped."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, clock at {task.fields[clock]:,.0f} s, ends in"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replay", total=total, clock=0.0)
        yield lambda now, done: bar.update(task, completed=done, clock=now / 1e9)
