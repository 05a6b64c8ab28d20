"""What a format of weights is: how panels lie in memory, and how a compiled product makes float32 numbers of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

PANEL: Final = 16
"""Columns of a tile of a product, which are rows of a weight [n, k]: neighbours in memory."""

GROUP: Final = 8
"""Channels of a panel that a product makes ready at a time."""


AHEAD: Final = 4096
"""Bytes by which memory is asked for before it is prepared."""


class PanelFormat(ABC):
    """A way to keep the panels of a weight, [⌈n / PANEL⌉, k, PANEL] in float32, that loses no bit of any number.

    A format is a file of its own and an entry of `formats.FORMATS`; compiled code tells it by the type of its memory.

    Attributes:
        name: in messages.
        dtype: of its memory; no other format has the same.
    """

    name: ClassVar[str]
    dtype: ClassVar[torch.dtype]

    @abstractmethod
    def shape(self, num_panels: int, k: int) -> tuple[int, int, int] | None:
        """Shape of that many panels in memory; None where there is no such form of k channels."""

    @abstractmethod
    def encode(self, panels: Tensor) -> Tensor | None:
        """Panels float32 [n, k, PANEL] as they are kept, of `shape(n, k)`; None where a number would change."""

    @abstractmethod
    def prepare(self, builder: Any, source: Any, group: Any, target: Any) -> None:
        """Write code, in LLVM's terms, that makes GROUP channels of a panel ready for a product.

        Args:
            builder: of llvmlite.
            source: pointer to bytes, the panel as it is kept.
            group: number of the group, from 0.
            target: pointer to bytes, room for float32 [k, PANEL], where the numbers go unless they can be read where
                they lie.
        """
