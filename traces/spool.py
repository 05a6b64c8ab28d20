"""Rows that are read more than once lie in a temporary file: memory does not grow with the trace."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import IO, Final, cast

from tinyllm.errors import IncompleteRunError
from traces.schema import TraceRow

CHUNK_ROWS: Final = 128
"""Rows that each reader holds; few, because a superposition has a reader for each copy."""

IN_MEMORY_BYTES: Final = 2**20
"""A trace that is smaller than this never reaches the disk."""


class Spool(AbstractContextManager["Spool", None]):
    """A temporary file of rows, gone when the context ends."""

    def __init__(self) -> None:
        file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - __exit__ closes it
        self._file = cast(IO[bytes], file)

    def __exit__(self, *_: object) -> None:
        # What a full disk did not take is flushed once more on closing, and fails once more.
        with suppress(OSError):
            self._file.close()

    def store(self, rows: Iterable[TraceRow]) -> Stored:
        """Consume `rows`; what is returned gives them again, as often as it is asked.

        Raises:
            IncompleteRunError: the folder of temporary files is full.
        """
        stored, rows = Stored(self._file), iter(rows)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            try:
                stored.append(chunk)
            except OSError as error:
                raise IncompleteRunError(
                    f"{tempfile.gettempdir()}: the rows of the trace do not fit there "
                    f"({error.strerror or error}); free space or set TMPDIR to another folder"
                ) from None
        return stored


class Stored:
    """Rows of a `Spool`; several readers may take turns.

    Attributes:
        num_rows: how many they are.
        first, last: the rows at both ends; None where there is no row.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.num_rows = 0
        self.first: TraceRow | None = None
        self.last: TraceRow | None = None
        self._file = file
        self._offsets: list[int] = []

    def append(self, chunk: list[TraceRow]) -> None:
        """Write rows behind the others; raises OSError where the disk does not take them."""
        self._offsets.append(self._file.seek(0, 2))
        # Plain tuples: pickle would name the class in front of every row.
        pickle.dump(list(map(tuple, chunk)), self._file, protocol=5)
        self._file.flush()
        self.num_rows += len(chunk)
        self.first, self.last = self.first or chunk[0], chunk[-1]

    def __iter__(self) -> Iterator[TraceRow]:
        for offset in self._offsets:
            self._file.seek(offset)
            yield from map(TraceRow._make, pickle.load(self._file))
