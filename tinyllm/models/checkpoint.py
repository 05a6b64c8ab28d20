"""The tensors of a checkpoint directory by name, read one at a time and memory-mapped."""

from __future__ import annotations

import json
import logging
import pickle
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinyllm.errors import InputError

logger = logging.getLogger(__name__)


class Shard(Protocol):
    """One file of weights."""

    path: Path

    def names(self) -> list[str]:
        """Names of its tensors. Raises `InputError` where the file is truncated or not of its format."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, backed by the mapped file where the format allows."""
        ...


class SafetensorsShard:
    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        try:
            with safe_open(self.path, framework="pt") as file:
                return list(file.keys())
        except (SafetensorError, OSError) as fault:
            reason = str(fault).splitlines()[0]
            raise InputError(
                f"{self.path}: truncated or no safetensors file ({reason}); copy it again"
            ) from None

    def tensor(self, name: str) -> Tensor:
        # Opened anew for each tensor: the pages of one mapping stay resident until it closes, which would double
        # the peak for the whole file.
        with safe_open(self.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor


class PickleShard:
    """A `.bin` file of torch, read by the unpickler that admits tensors and nothing that could run code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        return list(self._state)

    def tensor(self, name: str) -> Tensor:
        return self._state[name]

    @cached_property
    def _state(self) -> dict[str, Tensor]:
        try:
            # The format before torch 1.6 is no zip archive and cannot be mapped.
            mapped = zipfile.is_zipfile(self.path)
            state = torch.load(self.path, map_location="cpu", weights_only=True, mmap=mapped)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as fault:
            reason = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
            raise InputError(
                f"{self.path}: torch's weights-only unpickler refuses it ({reason[:120]}); use a safetensors file"
            ) from None
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise InputError(f"{self.path}: holds no plain dictionary of tensors; use a safetensors file")
        return state


FORMATS: Final[tuple[tuple[str, type[SafetensorsShard] | type[PickleShard]], ...]] = (
    ("model.safetensors", SafetensorsShard),
    ("pytorch_model.bin", PickleShard),
)
"""File name of a whole checkpoint and its reader, in order of preference; the index of shards adds `.index.json`."""


class Checkpoint:
    """All tensors of a checkpoint directory.

    Attributes:
        directory: where it lies.
        shards: name of each tensor → the file that holds it, file by file.
    """

    def __init__(self, directory: Path, shards: dict[str, Shard]) -> None:
        self.directory = directory
        self.shards = shards

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Find the weights and read every header, but no tensor yet.

        Raises:
            InputError: there are no weights, a shard that the index names is missing or lacks a tensor, or a
                file is truncated or unreadable.
        """
        for file_name, reader in FORMATS:
            single, index = directory / file_name, directory / f"{file_name}.index.json"
            if not single.is_file() and not index.is_file():
                continue
            if reader is PickleShard:
                logger.warning(
                    "%s: no safetensors here, reading %s by torch's weights-only unpickler",
                    directory,
                    file_name,
                )
            if single.is_file():
                shard = reader(single)
                return cls(directory, dict.fromkeys(shard.names(), shard))
            return cls(directory, _indexed_shards(index, reader))
        wanted = " or ".join(f"{name} (or {name}.index.json)" for name, _ in FORMATS)
        raise InputError(f"{directory}: no weights found; it needs {wanted}")

    def tensor(self, name: str) -> Tensor:
        """Raises `KeyError` for a name that is not in `shards`."""
        return self.shards[name].tensor(name)


def _indexed_shards(index: Path, reader: type[SafetensorsShard] | type[PickleShard]) -> dict[str, Shard]:
    weight_map = _read_index(index)
    shards = {file: reader(index.parent / file) for file in sorted(set(weight_map.values()))}
    if missing := [file for file, shard in shards.items() if not shard.path.is_file()]:
        raise InputError(f"{index}: shard {', '.join(missing)} is missing; copy it into {index.parent}")
    held = {file: shard.names() for file, shard in shards.items()}
    for name, file in weight_map.items():
        if name not in held[file]:
            raise InputError(f"{index}: tensor {name} is not in shard {file}; copy index and shards again")
    # What a shard holds beyond the index is passed on too: the loader knows which tensors are stray.
    return {
        name: shards[file]
        for file, names in held.items()
        for name in names
        if weight_map.get(name, file) == file
    }


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        pairs: Sequence[tuple[object, object]] = list(weight_map.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index}: holds no weight_map; copy it again") from None
    for name, file in pairs:
        # A shard lies beside its index; a path that leads elsewhere is never followed.
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(
                f"{index}: {name} names {file!r} as its shard; it must be a file name in this directory"
            )
    return {str(name): str(file) for name, file in pairs}
