"""What `tile` and `exponential` share: the types that code in LLVM's terms is made of, and one number in all lanes."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

LANES: Final = 8
"""Numbers of a vector; processors with narrower or wider registers split or join them."""

FLOAT: Final = ir.FloatType()
INT: Final = ir.IntType(32)
WORD: Final = ir.IntType(64)
VECTOR: Final = ir.VectorType(FLOAT, LANES)

FUSED: Final = ("contract",)
"""Flags of a product and a sum that may become one instruction."""


def broadcast(builder: Any, number: Any) -> Any:
    """A vector with the same number in every lane."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT, LANES), [0] * LANES))
