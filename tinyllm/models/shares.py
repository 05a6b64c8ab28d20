"""How the threads of a parallel section share tasks out: a range for each, and who has done his helps the others.

Cores of a machine that others use as well are not equally fast, and change from moment to moment: of equal shares that
are fixed ahead, the faster core waits for the slower one. A thread takes its own tasks from the front, so that memory
is read in order, and tasks of others from their ends. Who does a task changes nothing of its result.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from tinyllm.models.vectors import WORD

_APART: Final = 16
"""Words from one share to the next: no two threads write to the same cache line."""

_END: Final = 32
"""Bits of a share that tell its first task; those above tell the one behind its last."""


@njit(cache=True)  # type: ignore[untyped-decorator]
def shares_of(tasks: Any, threads: Any) -> Any:
    """Shares of tasks 0 to `tasks` − 1 for so many threads, for `take_task`: int64 [threads, _APART]."""
    shares = np.empty((threads, _APART), np.int64)
    for thread in range(threads):
        shares[thread, 0] = tasks * thread // threads + (tasks * (thread + 1) // threads << _END)
    return shares


@njit(cache=True)  # type: ignore[untyped-decorator]
def take_task(shares: Any, thread: Any) -> Any:
    """A task that no thread has taken, now this thread's; −1 if there is none left."""
    for other in range(len(shares)):
        change = np.int64(1) if other == 0 else -np.int64(1 << _END)
        share = _add(shares[(thread + other) % len(shares)], change)
        first, end = share & ((1 << _END) - 1), share >> _END
        if first < end:
            return first if other == 0 else end - 1
    return -1


@intrinsic  # type: ignore[untyped-decorator]
def _add(_: Any, array: Any, change: Any) -> Any:
    """Add to the first number of an int64 array, which other threads change as well; return what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.bitcast(place, WORD.as_pointer()), arguments[1], "monotonic")

    return types.int64(array, types.int64), generate
