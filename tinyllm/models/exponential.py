"""e to the power of float32 numbers, in arithmetic that becomes vector instructions: a call of the C library does not.

Written in LLVM's terms: a polynomial between two halves of a power of two. Source: Cephes, `expf`.
"""

from __future__ import annotations

import math
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinyllm.models.vectors import BYTE, FLOAT, INT, LANES, VECTOR, WORD, broadcast, fused, load, store, word

ROW: Final = 16
"""`exponentiate` takes rows of a multiple of so many numbers."""

_POLYNOMIAL: Final = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    0.5,
)
_LN2_HIGH: Final = 0.693359375
"""ln 2 to so few digits that its multiples are exact; `_LN2_LOW` is the rest."""
_LN2_LOW: Final = -2.12194440e-4
_SMALLEST, _LARGEST = -87.0, 88.0


def _splat(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _power_of_e(builder: Any, x: Any) -> Any:
    """e^x of a vector: 0 below −87, e^88 above 88, NaN of NaN."""
    integers = ir.VectorType(INT, LANES)
    # LLVM's own function, which llvmlite cannot name for vectors.
    floor = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.floor.v{LANES}f32"
    )
    is_large = builder.fcmp_ordered(">", x, _splat(_LARGEST))
    x = builder.select(is_large, _splat(_LARGEST), x)
    is_small = builder.fcmp_ordered("<", x, _splat(_SMALLEST))
    x = builder.select(is_small, _splat(_SMALLEST), x)
    power = builder.call(floor, [fused(builder, x, _splat(1 / math.log(2)), _splat(0.5))])
    rest = fused(builder, power, _splat(-_LN2_HIGH), x)
    rest = fused(builder, power, _splat(-_LN2_LOW), rest)
    value: Any = _splat(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        value = fused(builder, value, rest, _splat(coefficient))
    value = fused(builder, value, builder.fmul(rest, rest), builder.fadd(rest, _splat(1.0)))
    exponent = builder.add(builder.fptosi(power, integers), ir.Constant(integers, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(integers, [23] * LANES)), VECTOR)
    return builder.select(is_small, _splat(0.0), builder.fmul(value, scale))


class _Pass:
    """A loop over the vectors of a row, `ROW` numbers at a time, with a running vector for each of them."""

    def __init__(self, builder: Any, address: Any, count: Any, start: ir.Constant) -> None:
        self.builder, self._count = builder, count
        self._before = builder.block
        self._loop = builder.append_basic_block()
        builder.branch(self._loop)
        builder.position_at_end(self._loop)
        self._index = builder.phi(WORD)
        self._index.add_incoming(word(0), self._before)
        self.running = [builder.phi(VECTOR) for _ in range(ROW // LANES)]
        for phi in self.running:
            phi.add_incoming(start, self._before)
        row = builder.inttoptr(address, FLOAT.as_pointer())
        offsets = [builder.add(self._index, word(lane)) for lane in range(0, ROW, LANES)]
        self.places = [builder.bitcast(builder.gep(row, [offset]), VECTOR.as_pointer()) for offset in offsets]

    def load(self) -> list[Any]:
        loaded = [self.builder.load(place) for place in self.places]
        for each in loaded:
            each.align = 4
        return loaded

    def close(self, values: list[Any]) -> list[Any]:
        """End the loop's body with the new running vectors; return the last ones, behind the loop."""
        builder = self.builder
        following = builder.add(self._index, word(ROW))
        self._index.add_incoming(following, self._loop)
        for phi, value in zip(self.running, values, strict=True):
            phi.add_incoming(value, self._loop)
        after = builder.append_basic_block()
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._loop, after)
        builder.position_at_end(after)
        return values


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger one; b if a is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _fold(builder: Any, vectors: list[Any], combine: Any) -> Any:
    """One number from all lanes."""
    lanes = [
        builder.extract_element(vector, ir.Constant(INT, lane)) for vector in vectors for lane in range(LANES)
    ]
    while len(lanes) > 1:
        lanes = [combine(a, b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
    return lanes[0]


@intrinsic  # type: ignore[untyped-decorator]
def exponentiate(_: Any, address: Any, count: Any, scale: Any) -> Any:
    """Turn a row of float32, in place, into e to `scale` (> 0) times their distance from the largest; return the sum.

    The largest is taken off first, so that no exponential overflows. −∞ becomes 0; a NaN makes the sum NaN.

    Args:
        address: of the row.
        count: of its numbers, a multiple of `ROW`, at least one of which is more than −∞.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count, scale = arguments
        search = _Pass(builder, address, count, _splat(-math.inf))
        maxima = search.close(
            [_larger(builder, *pair) for pair in zip(search.load(), search.running, strict=True)]
        )
        largest = broadcast(builder, _fold(builder, maxima, lambda a, b: _larger(builder, a, b)))
        factor = broadcast(builder, scale)
        change = _Pass(builder, address, count, _splat(0.0))
        sums = []
        for value, place, total in zip(change.load(), change.places, change.running, strict=True):
            power = _power_of_e(builder, builder.fmul(builder.fsub(value, largest), factor))
            builder.store(power, place).align = 4
            sums.append(builder.fadd(total, power))
        return _fold(builder, change.close(sums), builder.fadd)

    return types.float32(types.intp, types.intp, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def gate(_: Any, gates: Any, ups: Any, out: Any) -> Any:
    """`out = silu(gates) · ups` of `ROW` float32 each, at addresses; silu(x) is x / (1 + e^−x)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        gates, ups, out = (builder.inttoptr(address, BYTE.as_pointer()) for address in arguments)
        one = _splat(1.0)
        for lane in range(0, ROW, LANES):
            offset = [word(4 * lane)]
            value = load(builder, builder.gep(gates, offset), VECTOR)
            power = _power_of_e(builder, builder.fneg(value))
            product = builder.fmul(value, load(builder, builder.gep(ups, offset), VECTOR))
            store(builder, builder.fdiv(product, builder.fadd(one, power)), builder.gep(out, offset))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
