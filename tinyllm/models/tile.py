"""The heart of every matrix product, in LLVM's terms, for no compiler finds it by itself.

Up to six rows of x times sixteen columns, whose sums stay in vector registers from the first to the last channel (Goto
and van de Geijn 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from llvmlite import ir
from numba import cfunc, njit, typeof, types
from numba.extending import intrinsic

from tinyllm.models.formats import FORMATS
from tinyllm.models.formats.base import GROUP, PANEL, PanelFormat
from tinyllm.models.vectors import BYTE, FLOAT, LANES, VECTOR, WORD, at, broadcast, fused, load, store, word

TILE_ROWS: Final = 6
"""Rows of the largest tile: 6 × 16 sums are twelve registers of eight, which leaves four for what they need."""


def _number_type(dtype: torch.dtype) -> types.Type:
    return typeof(torch.empty(0, dtype=dtype).numpy()).dtype


_FORMATS: Final = {_number_type(each.dtype): each for each in FORMATS}
"""By numba's type of the numbers in their memory."""


def _bytes(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, BYTE.as_pointer())


def _add_channel(
    builder: Any, rows: Sequence[Any], panel: Any, channel: Any, sums: Sequence[Any]
) -> list[Any]:
    """The sums after one more channel; row by row, each of its vectors."""
    if not rows:
        return []
    weights = [
        load(builder, at(builder, panel, channel, 4 * PANEL, 4 * lane), VECTOR)
        for lane in range(0, PANEL, LANES)
    ]
    added = []
    for number, row in enumerate(rows):
        value = broadcast(builder, load(builder, at(builder, row, channel, 4), FLOAT))
        for vector, weight in enumerate(weights):
            added.append(fused(builder, value, weight, sums[number * len(weights) + vector]))
    return added


class _Turns(NamedTuple):
    """Work that takes place in some rounds of a loop, each time with the next number.

    Attributes:
        wait: rounds before the first turn, less than 0 for no turn at all.
        period: rounds from one turn to the next.
        first: number of the first turn.
        write: writes the code of a turn, given its number.
    """

    wait: Any
    period: Any
    first: Any
    write: Callable[[Any], None]


def _sum_channels(
    builder: Any,
    rows: Sequence[Any],
    panel: Any,
    bounds: tuple[Any, Any],
    step: int,
    sums: Sequence[Any],
    turns: _Turns,
) -> list[Any]:
    """Write a loop over the channels in `bounds`, `step` at a time, whose number is a multiple of it.

    Args:
        rows: pointers to bytes, the rows of x.
        panel: pointer to bytes, float32 [channels, PANEL].
        sums: row by row, each of its vectors, before the loop.
        turns: what else some rounds of the loop do.

    Returns:
        The sums after it.
    """
    before = builder.block
    loop, after = builder.append_basic_block(), builder.append_basic_block()
    first, last = bounds
    builder.cbranch(builder.icmp_signed("<", first, last), loop, after)

    builder.position_at_end(loop)
    channel = builder.phi(WORD)
    channel.add_incoming(first, before)
    wait, number = builder.phi(WORD), builder.phi(WORD)
    phis = [builder.phi(VECTOR) for _ in sums]
    for phi, start in zip(phis, sums, strict=True):
        phi.add_incoming(start, before)
    for phi, start in ((wait, turns.wait), (number, turns.first)):
        phi.add_incoming(start, before)
    is_turn = builder.icmp_signed("==", wait, word(0))
    next_wait = builder.sub(builder.select(is_turn, turns.period, wait), word(1))
    next_number = builder.add(number, builder.zext(is_turn, WORD))
    with builder.if_then(is_turn):
        turns.write(number)
    current: list[Any] = list(phis)
    for offset in range(step):
        current = _add_channel(builder, rows, panel, builder.add(channel, word(offset)), current)
    following = builder.add(channel, word(step))
    end = builder.block
    channel.add_incoming(following, end)
    for phi, value in ((wait, next_wait), (number, next_number)):
        phi.add_incoming(value, end)
    for phi, value in zip(phis, current, strict=True):
        phi.add_incoming(value, end)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, after)

    builder.position_at_end(after)
    results = []
    for start, value in zip(sums, current, strict=True):
        result = builder.phi(VECTOR)
        result.add_incoming(start, before)
        result.add_incoming(value, end)
        results.append(result)
    return results


def _store_sums(builder: Any, out: Sequence[Any], sums: Sequence[Any], adds: Any) -> None:
    if not out:
        return
    vectors = PANEL // LANES
    with builder.if_else(builder.icmp_signed("!=", adds, word(0))) as (to_add, to_set):
        for branch, is_added in ((to_add, True), (to_set, False)):
            with branch:
                for number, total in enumerate(sums):
                    place = builder.gep(out[number // vectors], [word(4 * LANES * (number % vectors))])
                    store(
                        builder,
                        builder.fadd(total, load(builder, place, VECTOR)) if is_added else total,
                        place,
                    )


def _write_tile(builder: Any, stored_as: PanelFormat, num_rows: int, arguments: Sequence[Any]) -> None:
    """Write the code of a tile of so many rows; none prepares only."""
    x, x_stride, panel, channels, following, room, wait, period, group, out, out_stride, adds = arguments
    source, target, panel = (_bytes(builder, address) for address in (following, room, panel))

    def prepare(group: Any) -> None:
        stored_as.prepare(builder, source, group, target)

    def rows_at(address: Any, stride: Any) -> list[Any]:
        size = builder.mul(stride, word(4))
        start = _bytes(builder, address)
        return [builder.gep(start, [builder.mul(size, word(row))]) for row in range(num_rows)]

    rows = rows_at(x, x_stride)
    sums: list[Any] = [ir.Constant(VECTOR, [0.0] * LANES)] * (num_rows * PANEL // LANES)
    even = builder.and_(channels, word(-GROUP))
    turns = _Turns(wait, period, group, prepare)
    sums = _sum_channels(builder, rows, panel, (word(0), even), GROUP, sums, turns)
    none = _Turns(word(-1), word(-1), word(0), lambda _: None)
    sums = _sum_channels(builder, rows, panel, (even, channels), 1, sums, none)
    _store_sums(builder, rows_at(out, out_stride), sums, adds)


@intrinsic  # type: ignore[untyped-decorator]
def _tile(
    _: Any,
    number: Any,
    rows: Any,
    x: Any,
    x_stride: Any,
    panel: Any,
    channels: Any,
    following: Any,
    room: Any,
    wait: Any,
    period: Any,
    group: Any,
    out: Any,
    out_stride: Any,
    adds: Any,
) -> Any:
    """A tile of up to TILE_ROWS rows, each size with code of its own."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored_as = _FORMATS[signature.args[0].dtype]
        after = builder.append_basic_block()
        sizes = builder.switch(arguments[1], after)
        for num_rows in range(TILE_ROWS + 1):
            block = builder.append_basic_block()
            sizes.add_case(word(num_rows), block)
            builder.position_at_end(block)
            _write_tile(builder, stored_as, num_rows, arguments[2:])
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(number, *[types.intp] * 13), generate


def _multiply_rows(
    number: Any, x: Any, x_stride: Any, rows: Any, panel: Any, channels: Any, following: Any, room: Any,
    out: Any, out_stride: Any, adds: Any,
) -> None:  # fmt: skip
    """What `multiply_tile` calls; the type of `number` tells the format."""
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    groups = channels // GROUP
    wait = 0 if following else -1
    if rows == 0:
        _tile(number, 0, x, 0, panel, channels, following, room, wait, 1, 0, out, 0, 0)
    first = 0
    for tile in range(tiles):
        # As even as can be: a tile of one or two rows waits for its own sums.
        last = rows * (tile + 1) // tiles
        # Each tile prepares its share of what follows, evenly: memory and arithmetic are busy at the same time.
        group = groups * tile // tiles
        size, x_row, out_row = last - first, x + 4 * first * x_stride, out + 4 * first * out_stride
        _tile(
            number, size, x_row, x_stride, panel, channels, following, room, wait, tiles, group, out_row,
            out_stride, adds,
        )  # fmt: skip
        first = last


@cache
def tile_address(dtype: torch.dtype) -> int:
    """The address of compiled code for `multiply_tile`, for panels of the format whose memory is of that type.

    Code at an address is compiled once, whoever calls it; the products would take minutes if each had its own.
    """
    signature = types.void(types.CPointer(_number_type(dtype)), *[types.intp] * 10)
    return int(cfunc(signature, cache=True)(_multiply_rows).address)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_tile(
    _: Any,
    tile: Any,
    x: Any,
    x_stride: Any,
    rows: Any,
    panel: Any,
    channels: Any,
    following: Any,
    room: Any,
    out: Any,
    out_stride: Any,
    adds: Any,
) -> Any:
    """`out = x @ panel`, or `out += x @ panel` if `adds` is not 0, over addresses of float32.

    Args:
        tile: the address of the code (`tile_address`), which tells the format of `following`.
        x: [rows, channels], a row every `x_stride` numbers.
        panel: [channels, PANEL], contiguous.
        following: the panel that comes next, as it is kept, which is made ready meanwhile; 0 for none.
        room: where its numbers go, if they cannot be read where they lie: [channels, PANEL].
        out: [rows, PANEL], a row every `out_stride` numbers.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [WORD] * 11)
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(function, [word(0), *arguments[1:]])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 11), generate


@njit(cache=True)  # type: ignore[untyped-decorator]
def prepare_panel(tile: Any, panel: Any, channels: Any, room: Any) -> None:
    """Make a panel ready, or its first channels, before any product.

    Args:
        tile: the address of the code.
        panel: the address of the panel, as it is kept.
        room: the address of float32 [channels, PANEL].
    """
    multiply_tile(tile, 0, 0, 0, 0, channels, panel, room, 0, 0, 0)
