"""Each task of a parallel section is done once, by whichever thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from tinyllm.models.shares import shares_of, take_task


@njit(nogil=True)
def _take_all(shares: np.ndarray, thread: int, most: int, done: np.ndarray) -> int:
    count = 0
    while count < most:
        task = take_task(shares, thread)
        if task < 0:
            return count
        done[thread, count] = task
        count += 1
    return count


def _taken(shares: np.ndarray, thread: int, most: int) -> list[int]:
    done = np.empty((len(shares), most), np.int64)
    return done[thread, : _take_all(shares, thread, most, done)].tolist()


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(1, 5), st.data())
def test_a_thread_takes_its_own_tasks_in_order_then_others_from_their_ends(
    tasks: int, threads: int, data: st.DataObject
) -> None:
    shares = shares_of(tasks, threads)
    left = [list(range(tasks * i // threads, tasks * (i + 1) // threads)) for i in range(threads)]
    for _ in range(tasks + threads):
        thread = data.draw(st.integers(0, threads - 1))
        (task,) = _taken(shares, thread, 1) or [-1]
        victims = [thread, *((thread + i) % threads for i in range(1, threads))]
        owner = next((i for i in victims if left[i]), None)
        expected = -1 if owner is None else left[owner].pop(0 if owner == thread else -1)
        assert task == expected


def test_threads_at_once_take_each_task_once() -> None:
    tasks, threads = 200_000, 4
    for first_share_only in (False, True):
        shares = shares_of(tasks, 1 if first_share_only else threads)
        if first_share_only:  # all tasks are one thread's, and the others help
            empty = shares_of(0, threads)
            empty[0] = shares[0]
            shares = empty
        done = np.full((threads, tasks), -1, np.int64)
        _take_all(shares.copy(), 0, 0, done)
        start = Barrier(threads)

        def work(
            thread: int, shares: np.ndarray = shares, done: np.ndarray = done, start: Barrier = start
        ) -> None:
            start.wait()
            _take_all(shares, thread, tasks, done)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        assert np.array_equal(np.sort(done[done >= 0]), np.arange(tasks))
