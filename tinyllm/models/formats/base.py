"""What a format of weights is: how panels lie in memory, and how a compiled product makes float32 numbers of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

PANEL: Final = 16
"""Columns of a tile of a product, which are rows of a weight [n, k]: neighbours in memory."""

GROUP: Final = 8
"""Channels of a panel that a product reads in a round of its loop."""


class PanelFormat(ABC):
    """A way to keep the panels of a weight, [⌈n / PANEL⌉, k, PANEL] in float32, that loses no bit of any number.

    A format is a file of its own and an entry of `formats.FORMATS`; compiled code tells it by the type of its memory.

    Attributes:
        name: in messages.
        dtype: of its memory; no other format has the same.
        group_bytes: of GROUP channels in memory.
        registers: vectors that are needed to read the numbers of a group, beside the numbers themselves.
    """

    name: ClassVar[str]
    dtype: ClassVar[torch.dtype]
    group_bytes: ClassVar[int]
    registers: ClassVar[int] = 0

    @abstractmethod
    def shape(self, num_panels: int, k: int) -> tuple[int, int, int] | None:
        """Shape of that many panels in memory; None where there is no such form of k channels."""

    @abstractmethod
    def encode(self, panels: Tensor) -> Tensor | None:
        """Panels float32 [n, k, PANEL] as they are kept, of `shape(n, k)`; None where a number would change."""

    @abstractmethod
    def open(self, builder: Any, panel: Any, group: Any, lane: int) -> Any:
        """Write code, in LLVM's terms, for what the numbers of a group have in common.

        Args:
            builder: of llvmlite.
            panel: pointer to bytes, the panel as it is kept.
            group: number of the group, from 0.
            lane: the first of LANES columns.
        """

    @abstractmethod
    def numbers(self, builder: Any, opened: Any, channel: Any) -> Any:
        """Write code for the numbers of a channel, a vector of float32; `channel` counts from the group's first."""
