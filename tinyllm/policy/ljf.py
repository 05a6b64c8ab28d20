"""Longest job first: a bad baseline, to show how much the order matters."""

from __future__ import annotations

from typing import ClassVar

from tinyllm.policy.request import Request
from tinyllm.policy.sjf import SJF


class LJF(SJF):
    """The order of `SJF`, reversed."""

    name: ClassVar[str] = "ljf"

    def key(self, view: Request, now: int) -> tuple[int]:
        (work,) = super().key(view, now)
        return (-work,)
