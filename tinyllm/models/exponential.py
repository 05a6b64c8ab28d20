"""e to the power of float32 numbers, in arithmetic that becomes vector instructions: a call of the C library does not.

Written in LLVM's terms: a polynomial between two halves of a power of two, to which a number is brought as in Cephes'
`expf`; the polynomial is fitted to the relative error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tinyllm.models.vectors import BYTE, INT, LANES, VECTOR, at, broadcast, fused, load, loop, store, word

ROW: Final = 16
"""`exponentiate` takes rows of a multiple of so many numbers."""

_POLYNOMIAL: Final = (
    0.008290272206068039,
    0.04189816117286682,
    0.1666763871908188,
    0.4999914765357971,
    0.9999997019767761,
    1.0,
)
"""Of e^x between −ln 2 / 2 and ln 2 / 2, from the fifth power down, with the smallest relative error: 9e-8."""
_LN2_HIGH: Final = 0.693359375
"""ln 2 to so few digits that its multiples are exact; `_LN2_LOW` is the rest."""
_LN2_LOW: Final = -2.12194440e-4

_ROUND: Final = 4 * LANES
"""Numbers of a row that are worked on at the same time."""

_SMALLEST: Final = -100.0
"""Below it all is 0, as it is from −88 on."""
_LARGEST: Final = 88.0

_FRACTION_BITS: Final = 23
_ROUNDING: Final = 1.5 * 2**_FRACTION_BITS


def _splat(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _powers_of_e(builder: Any, vectors: Sequence[Any]) -> list[Any]:
    """e^x of vectors of at most 88 each: 0 below −88, NaN of NaN.

    Step by step for all of them, for each step of one waits for the step before.
    """
    integers = ir.VectorType(INT, LANES)
    one, none = builder.bitcast(_splat(1.0), integers), ir.Constant(integers, [0] * LANES)
    rounding = builder.bitcast(_splat(_ROUNDING), integers)
    fraction_bits = ir.Constant(integers, [_FRACTION_BITS] * LANES)

    def fused_each(a: Sequence[Any], b: float, c: Sequence[Any]) -> list[Any]:
        return [fused(builder, x, _splat(b), y) for x, y in zip(a, c, strict=True)]

    clamped = [_larger(builder, _splat(_SMALLEST), x) for x in vectors]
    # A sum so large has no digits behind the point left: its last bits are the nearest whole number. They are read as
    # an integer, since taking the large number off again could be "simplified" away where sums may be reordered.
    sums = fused_each(clamped, 1 / math.log(2), [_splat(_ROUNDING)] * len(vectors))
    rounded = [builder.sub(builder.bitcast(x, integers), rounding) for x in sums]
    powers = [builder.sitofp(x, VECTOR) for x in rounded]
    rests = fused_each(powers, -_LN2_HIGH, clamped)
    rests = fused_each(powers, -_LN2_LOW, rests)
    values: list[Any] = [_splat(_POLYNOMIAL[0])] * len(vectors)
    for coefficient in _POLYNOMIAL[1:]:
        values = [
            fused(builder, value, rest, _splat(coefficient))
            for value, rest in zip(values, rests, strict=True)
        ]
    exponents = [builder.shl(x, fraction_bits) for x in rounded]
    # The bits of 2^power, or something negative where that is too small to have any.
    bits = [builder.add(exponent, one) for exponent in exponents]
    bits = [builder.select(builder.icmp_signed(">", x, none), x, none) for x in bits]
    return [builder.fmul(value, builder.bitcast(x, VECTOR)) for value, x in zip(values, bits, strict=True)]


_Body = Callable[[list[Any], list[Any]], list[Any]]
"""Given the places of neighbouring vectors and their running vectors, writes code and returns the new ones."""


def _each_vector(builder: Any, address: Any, count: Any, start: ir.Constant, body: _Body) -> list[Any]:
    """Write loops over the vectors of a row of `count` numbers; return the running vectors after it.

    Each round takes `_ROUND` numbers, so that the processor has something to do while it waits; a last one `ROW`.
    """
    row = builder.inttoptr(address, BYTE.as_pointer())

    def work(index: Any, running: list[Any]) -> list[Any]:
        return body([at(builder, row, index, 4, 4 * LANES * each) for each in range(len(running))], running)

    running: list[Any] = [start] * (_ROUND // LANES)
    first: Any = word(0)
    for size in (_ROUND, ROW):
        taken, rest = running[: size // LANES], running[size // LANES :]
        first, taken = loop(builder, (first, count), size, taken, work)
        running = taken + rest
    return running


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger one; b if either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    """The smaller one; b if either is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def _fold(builder: Any, vectors: list[Any], combine: Any) -> Any:
    """One number from all lanes."""
    while len(vectors) > 1:
        vectors = [combine(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    (vector,) = vectors
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        halves = (
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(INT, lanes), list(range(first, first + lanes)))
            )
            for first in (0, lanes)
        )
        vector = combine(*halves)
    return builder.extract_element(vector, ir.Constant(INT, 0))


@intrinsic  # type: ignore[untyped-decorator]
def largest(_: Any, address: Any, count: Any) -> Any:
    """The largest number of a row of float32 that is one, −∞ if there is none.

    Args:
        address: of the row.
        count: of its numbers, a multiple of `ROW`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def body(places: list[Any], running: list[Any]) -> list[Any]:
            return [
                _larger(builder, load(builder, place, VECTOR), value)
                for place, value in zip(places, running, strict=True)
            ]

        address, count = arguments
        maxima = _each_vector(builder, address, count, _splat(-math.inf), body)
        return _fold(builder, maxima, lambda a, b: _larger(builder, a, b))

    return types.float32(types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def exponentiate(_: Any, address: Any, count: Any, scale: Any, shift: Any) -> Any:
    """Turn a row of float32, in place, into e to `scale` times them less `shift`, at most 88; return the sum.

    −∞ becomes 0; a NaN makes the sum NaN.

    Args:
        address: of the row.
        count: of its numbers, a multiple of `ROW`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count, scale, shift = arguments
        factor, offset = broadcast(builder, scale), broadcast(builder, builder.fneg(shift))

        def body(places: list[Any], running: list[Any]) -> list[Any]:
            values = [fused(builder, load(builder, place, VECTOR), factor, offset) for place in places]
            powers = _powers_of_e(builder, values)
            for power, place in zip(powers, places, strict=True):
                store(builder, power, place)
            return [builder.fadd(total, power) for total, power in zip(running, powers, strict=True)]

        return _fold(builder, _each_vector(builder, address, count, _splat(0.0), body), builder.fadd)

    return types.float32(types.intp, types.intp, types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def gate(_: Any, gates: Any, ups: Any, out: Any) -> Any:
    """`out = silu(gates) · ups` of `ROW` float32 each, at addresses; silu(x) is x / (1 + e^−x)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        gates, ups, out = (builder.inttoptr(address, BYTE.as_pointer()) for address in arguments)
        places = [[word(4 * lane)] for lane in range(0, ROW, LANES)]
        values = [load(builder, builder.gep(gates, place), VECTOR) for place in places]
        opposites = [_smaller(builder, _splat(_LARGEST), builder.fneg(value)) for value in values]
        powers = _powers_of_e(builder, opposites)
        for place, value, power in zip(places, values, powers, strict=True):
            product = builder.fmul(value, load(builder, builder.gep(ups, place), VECTOR))
            total = builder.fadd(_splat(1.0), power)
            store(builder, builder.fdiv(product, total), builder.gep(out, place))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
