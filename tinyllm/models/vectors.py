"""What all code in LLVM's terms is made of: types, memory, and one number in all lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

LANES: Final = 8
"""Numbers of a vector; processors with narrower or wider registers split or join them."""

BYTE: Final = ir.IntType(8)
FLOAT: Final = ir.FloatType()
INT: Final = ir.IntType(32)
WORD: Final = ir.IntType(64)
VECTOR: Final = ir.VectorType(FLOAT, LANES)

FUSED: Final = ("contract",)
"""Flags of a product and a sum that may become one instruction."""

_LINE: Final = 64
"""Bytes that a processor brings from memory at once."""


def word(value: int) -> ir.Constant:
    """A constant that counts or addresses."""
    return ir.Constant(WORD, value)


def broadcast(builder: Any, number: Any) -> Any:
    """A vector with the same number in every lane."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT, LANES), [0] * LANES))


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, rounded once where the processor can."""
    return builder.fadd(builder.fmul(a, b, flags=FUSED), c, flags=FUSED)


def at(builder: Any, base: Any, index: Any, stride: int, offset: int = 0) -> Any:
    """The pointer to a byte: `base + index * stride + offset`."""
    return builder.gep(base, [builder.add(builder.mul(index, word(stride)), word(offset))])


def load(builder: Any, pointer: Any, kind: Any) -> Any:
    """What lies at a pointer, wherever that is."""
    loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    loaded.align = 1
    return loaded


def store(builder: Any, value: Any, pointer: Any) -> None:
    """Put a value at a pointer, wherever that is."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 1


def prefetch(builder: Any, pointer: Any, size: int) -> None:
    """Have bytes brought into the second-level cache; an address where nothing lies does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, INT, INT, INT])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    read, locality, data = 0, 2, 1
    for offset in range(0, size, _LINE):
        line = builder.gep(pointer, [word(offset)])
        builder.call(function, [line, *(ir.Constant(INT, value) for value in (read, locality, data))])


def loop(
    builder: Any,
    bounds: tuple[Any, Any],
    step: int,
    starts: Sequence[Any],
    body: Callable[[Any, list[Any]], Sequence[Any]],
) -> tuple[Any, list[Any]]:
    """Write a loop over a range, `step` at a time, as long as that much of it is left.

    Args:
        bounds: the first index and the one behind the last.
        starts: values that change from round to round, before the first.
        body: writes the code of a round, given its index and the values before it; returns those after it.

    Returns:
        The index of what is left, and the last values.
    """
    first, last = bounds
    before = builder.block
    inside, after = builder.append_basic_block(), builder.append_basic_block()

    def go_on(index: Any) -> None:
        is_left = builder.icmp_signed("<=", builder.add(index, word(step)), last)
        builder.cbranch(is_left, inside, after)

    def joined(sources: Sequence[Any], block: Any) -> list[Any]:
        phis = [builder.phi(source.type) for source in sources]
        for phi, source in zip(phis, sources, strict=True):
            phi.add_incoming(source, block)
        return phis

    go_on(first)
    builder.position_at_end(inside)
    index, *values = joined([first, *starts], before)
    following = [builder.add(index, word(step)), *body(index, values)]
    end = builder.block
    for phi, source in zip([index, *values], following, strict=True):
        phi.add_incoming(source, end)
    go_on(following[0])

    builder.position_at_end(after)
    behind, *results = joined([first, *starts], before)
    for phi, source in zip([behind, *results], following, strict=True):
        phi.add_incoming(source, end)
    return behind, results
