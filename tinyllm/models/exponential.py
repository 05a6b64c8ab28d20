"""Powers of two and of e of float32 numbers, in arithmetic that becomes vector instructions: a call of the C library
does not.

Written in LLVM's terms: the exponent of a float is a power of two already, and a polynomial, fitted to the relative
error, does what lies between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from tinyllm.models.vectors import BYTE, INT, LANES, VECTOR, at, broadcast, fused, load, loop, store, word

ROW: Final = 16
"""Numbers of a row that are worked on at the same time, for one waits for its own steps."""

_POLYNOMIAL: Final = (
    0.001326469937339425,
    0.009671534411609173,
    0.05550733953714371,
    0.24022242426872253,
    0.6931470036506653,
    1.0,
)
"""Of 2^x between −1/2 and 1/2, from the fifth power down, with the smallest relative error: 9e-8."""

LOG2_E: Final = 1.4426950408889634
_LOG2_E_HIGH: Final = 1.4426950216293335
"""The nearest float32; `_LOG2_E_LOW` is the rest."""
_LOG2_E_LOW: Final = LOG2_E - _LOG2_E_HIGH

_LEAST: Final = -126.0
"""The smallest power of two that a float32 holds in full."""
_SMALLEST: Final = -87.0
_LARGEST: Final = 88.0
"""Bounds of the powers of e of a gate."""

_FRACTION_BITS: Final = 23


def _splat(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _call(builder: Any, name: str, *vectors: Any) -> Any:
    """The instruction of that name on vectors."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(vectors))
    return builder.call(get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), vectors)


def _nearest(builder: Any, vector: Any) -> Any:
    """The nearest whole numbers."""
    return _call(builder, "rint", vector)


def _powers_of_two(builder: Any, wholes: Sequence[Any], rests: Sequence[Any]) -> list[Any]:
    """2^(whole + rest) of vectors, whose wholes lie between −126 and 127 and rests between −1/2 and 1/2.

    A whole of −126 needs a rest that is not negative. NaN of NaN. Step by step for all vectors, for each step of one
    waits for the step before.
    """
    integers = ir.VectorType(INT, LANES)
    fraction_bits = ir.Constant(integers, [_FRACTION_BITS] * LANES)
    values: list[Any] = [_splat(_POLYNOMIAL[0])] * len(rests)
    for coefficient in _POLYNOMIAL[1:]:
        values = [
            fused(builder, value, rest, _splat(coefficient))
            for value, rest in zip(values, rests, strict=True)
        ]
    exponents = [builder.shl(builder.fptosi(whole, integers), fraction_bits) for whole in wholes]
    return [
        builder.bitcast(builder.add(builder.bitcast(value, integers), exponent), VECTOR)
        for value, exponent in zip(values, exponents, strict=True)
    ]


_Body = Callable[[list[Any], list[Any]], list[Any]]
"""Given the places of neighbouring vectors and their running vectors, writes code and returns the new ones."""


def _each_vector(builder: Any, address: Any, count: Any, start: ir.Constant, body: _Body) -> list[Any]:
    """Write a loop over the vectors of a row of `count` numbers, `ROW` at a time; return the running ones after it."""
    row = builder.inttoptr(address, BYTE.as_pointer())

    def work(index: Any, running: list[Any]) -> Sequence[Any]:
        return body([at(builder, row, index, 4, 4 * lane) for lane in range(0, ROW, LANES)], running)

    _, running = loop(builder, (word(0), count), ROW, [start] * (ROW // LANES), work)
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
def exponentiate(_: Any, address: Any, count: Any, scale: Any, top: Any) -> Any:
    """Turn a row of float32, in place, into 2^(scale · (number − top)) and return the sum.

    Exponents are at most 127; of the top itself it is 0, however large that is. −∞ becomes 0, and what is below 2^−126
    with it; a NaN makes the sum NaN.

    Args:
        address: of the row.
        count: of its numbers, a multiple of `ROW`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count, *others = arguments
        scale, top = (broadcast(builder, other) for other in others)

        def body(places: list[Any], running: list[Any]) -> list[Any]:
            # The difference first: a product of large numbers is not exact to one.
            lower = [builder.fsub(load(builder, place, VECTOR), top) for place in places]
            values = [builder.fmul(difference, scale) for difference in lower]
            values = [_larger(builder, _splat(_LEAST), value) for value in values]
            wholes = [_nearest(builder, value) for value in values]
            rests = [builder.fsub(value, whole) for value, whole in zip(values, wholes, strict=True)]
            # What is taken off the smallest power makes it 0; all that count are too large to change.
            powers = [
                builder.fsub(power, _splat(2.0**_LEAST)) for power in _powers_of_two(builder, wholes, rests)
            ]
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
        opposites = [
            _larger(builder, _splat(_SMALLEST), _smaller(builder, _splat(_LARGEST), builder.fneg(value)))
            for value in values
        ]
        wholes = [_nearest(builder, builder.fmul(x, _splat(_LOG2_E_HIGH))) for x in opposites]
        # Rounded once for certain: what is left of a product that was rounded before has few digits.
        rests = [
            _call(builder, "fma", x, _splat(_LOG2_E_HIGH), builder.fneg(whole))
            for x, whole in zip(opposites, wholes, strict=True)
        ]
        rests = [
            fused(builder, x, _splat(_LOG2_E_LOW), rest) for x, rest in zip(opposites, rests, strict=True)
        ]
        powers = _powers_of_two(builder, wholes, rests)
        for place, value, power in zip(places, values, powers, strict=True):
            product = builder.fmul(value, load(builder, builder.gep(ups, place), VECTOR))
            total = builder.fadd(_splat(1.0), power)
            store(builder, builder.fdiv(product, total), builder.gep(out, place))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
