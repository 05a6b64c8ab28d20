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

from tinyllm.models.formats import FLOAT32, FORMATS, format_of
from tinyllm.models.formats.base import GROUP, PANEL, PanelFormat
from tinyllm.models.vectors import (
    BYTE,
    FLOAT,
    LANES,
    VECTOR,
    WORD,
    at,
    broadcast,
    fused,
    load,
    loop,
    prefetch,
    store,
    word,
)

_AHEAD: Final = 4096
"""Bytes by which memory is asked for before it is made float32."""

_LONG: Final = 512
"""Channels from which on a tile asks for the memory of its sums while it adds: products, not attention's short sums."""

_REGISTERS: Final = 16
"""Vector registers of AVX2; processors with more leave some unused."""

_LANES: Final = tuple(range(0, PANEL, LANES))
"""The first column of each vector of a panel."""


def _most_rows(stored_as: PanelFormat) -> int:
    """Rows of the largest tile that reads panels as they are kept: six of float32.

    Beside the sums there must be registers for the numbers of a channel, for one of x, and for reading.
    """
    return (_REGISTERS - 1) // len(_LANES) - 1 - stored_as.registers


def _number_type(dtype: torch.dtype) -> types.Type:
    return typeof(torch.empty(0, dtype=dtype).numpy()).dtype


_FORMATS: Final = {_number_type(each.dtype): each for each in FORMATS}
"""By numba's type of the numbers in their memory."""


def _bytes(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, BYTE.as_pointer())


def _add_channel(
    builder: Any, rows: Sequence[Any], weights: Sequence[Any], channel: Any, sums: Sequence[Any]
) -> list[Any]:
    """The sums after one more channel; row by row, each of its vectors."""
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
    read: Callable[[Any], Callable[[int], Sequence[Any]]],
    bounds: tuple[Any, Any],
    step: int,
    sums: Sequence[Any],
    turns: _Turns,
) -> list[Any]:
    """Write a loop over the channels in `bounds`, `step` at a time, whose number is a multiple of it.

    Args:
        rows: pointers to bytes, the rows of x.
        read: opens the panel at the first channel of a round; that writes code for its vectors so many channels on.
        sums: row by row, each of its vectors, before the loop.
        turns: what else some rounds of the loop do.

    Returns:
        The sums after it.
    """

    def add_round(channel: Any, values: list[Any]) -> list[Any]:
        wait, number, *current = values
        is_turn = builder.icmp_signed("==", wait, word(0))
        next_wait = builder.sub(builder.select(is_turn, turns.period, wait), word(1))
        next_number = builder.add(number, builder.zext(is_turn, WORD))
        with builder.if_then(is_turn):
            turns.write(number)
        if rows:
            read_at = read(channel)
            for offset in range(step):
                place = builder.add(channel, word(offset))
                current = _add_channel(builder, rows, read_at(offset), place, current)
        return [next_wait, next_number, *current]

    _, (_, _, *results) = loop(builder, bounds, step, [turns.wait, turns.first, *sums], add_round)
    return results


def _store_sums(builder: Any, out: Sequence[Any], sums: Sequence[Any], adds: Any) -> None:
    if not out:
        return
    places = [builder.gep(row, [word(4 * lane)]) for row in out for lane in _LANES]
    with builder.if_else(builder.icmp_signed("!=", adds, word(0))) as (to_add, to_set):
        with to_add:
            for total, place in zip(sums, places, strict=True):
                store(builder, builder.fadd(total, load(builder, place, VECTOR)), place)
        with to_set:
            for total, place in zip(sums, places, strict=True):
                store(builder, total, place)


def _write_tile(
    builder: Any,
    stored_as: PanelFormat,
    num_rows: int,
    prepare: Callable[[Any], None],
    arguments: Sequence[Any],
) -> None:
    """Write the code of a tile, whose panel is in that format, and which prepares groups of the next one meanwhile.

    One of no rows does nothing else.
    """
    x, x_stride, panel, channels, wait, period, group, out, out_stride, adds = arguments
    panel = _bytes(builder, panel)

    def rows_at(address: Any, stride: Any) -> list[Any]:
        size = builder.mul(stride, word(4))
        start = _bytes(builder, address)
        return [builder.gep(start, [builder.mul(size, word(row))]) for row in range(num_rows)]

    def read(channel: Any) -> Callable[[int], Sequence[Any]]:
        group, within = (
            builder.lshr(channel, word(GROUP.bit_length() - 1)),
            builder.and_(channel, word(GROUP - 1)),
        )
        opened = [stored_as.open(builder, panel, group, lane) for lane in _LANES]
        return lambda offset: [
            stored_as.numbers(builder, each, builder.add(within, word(offset))) for each in opened
        ]

    rows, into = rows_at(x, x_stride), rows_at(out, out_stride)
    with builder.if_then(builder.icmp_signed(">=", channels, word(_LONG))):
        for row in into:
            # By the end of the sums it is here; it would be waited for otherwise.
            prefetch(builder, row, 4 * PANEL)
    sums: list[Any] = [ir.Constant(VECTOR, [0.0] * LANES)] * (num_rows * len(_LANES))
    even = builder.and_(channels, word(-GROUP))
    turns = _Turns(wait, period, group, prepare)
    sums = _sum_channels(builder, rows, read, (word(0), even), GROUP, sums, turns)
    none = _Turns(word(-1), word(-1), word(0), lambda _: None)
    sums = _sum_channels(builder, rows, read, (even, channels), 1, sums, none)
    _store_sums(builder, into, sums, adds)


def _fetch(builder: Any, stored_as: PanelFormat, panel: Any, group: Any) -> None:
    """Write code that has a group of a panel brought from memory."""
    prefetch(builder, at(builder, panel, group, stored_as.group_bytes), stored_as.group_bytes)


def _convert(builder: Any, stored_as: PanelFormat, panel: Any, group: Any, room: Any) -> None:
    """Write code that makes float32 numbers of a group of a panel, at its place in a room for a panel of them."""
    prefetch(builder, at(builder, panel, group, stored_as.group_bytes, _AHEAD), stored_as.group_bytes)
    for lane in _LANES:
        opened = stored_as.open(builder, panel, group, lane)
        for channel in range(GROUP):
            place = at(builder, room, group, FLOAT32.group_bytes, 4 * (channel * PANEL + lane))
            store(builder, stored_as.numbers(builder, opened, word(channel)), place)


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
    """A tile of some rows, or, if so many more than a format's most, one that reads float32 from a room."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored_as = _FORMATS[signature.args[0].dtype]
        _, rows, x, x_stride, panel, channels, following, room, *others = arguments
        source, target = (_bytes(builder, address) for address in (following, room))
        after = builder.append_basic_block()
        sizes = builder.switch(rows, after)

        def fetch(group: Any) -> None:
            _fetch(builder, stored_as, source, group)

        def convert(group: Any) -> None:
            _convert(builder, stored_as, source, group, target)

        tiles = [(stored_as, size, fetch) for size in range(_most_rows(stored_as) + 1)]
        if stored_as is not FLOAT32:
            tiles += [(FLOAT32, size, convert) for size in range(_most_rows(FLOAT32) + 1)]
        for case, (read_as, size, prepare) in enumerate(tiles):
            block = builder.append_basic_block()
            sizes.add_case(word(case), block)
            builder.position_at_end(block)
            _write_tile(builder, read_as, size, prepare, (x, x_stride, panel, channels, *others))
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(number, *[types.intp] * 13), generate


def _rows_function(most_as_kept: int, most_of_float32: int) -> Callable[..., None]:
    """What `multiply_tile` calls, for a format whose tiles have at most so many rows."""

    def multiply_rows(
        number: Any, x: Any, x_stride: Any, rows: Any, panel: Any, channels: Any, following: Any, room: Any,
        out: Any, out_stride: Any, adds: Any,
    ) -> None:  # fmt: skip
        most, before = (most_of_float32, most_as_kept + 1) if room else (most_as_kept, 0)
        tiles = (rows + most - 1) // most
        groups = channels // GROUP
        wait = 0 if following else -1
        if rows == 0:
            _tile(number, before, x, 0, panel, channels, following, room, wait, 1, 0, out, 0, 0)
        first = 0
        for tile in range(tiles):
            # As even as can be: a tile of one or two rows waits for its own sums.
            last = rows * (tile + 1) // tiles
            # Each tile prepares its share of what follows, evenly: memory and arithmetic are busy at the same time.
            group = groups * tile // tiles
            size, x_row, out_row = last - first, x + 4 * first * x_stride, out + 4 * first * out_stride
            _tile(
                number, before + size, x_row, x_stride, panel, channels, following, room, wait, tiles, group,
                out_row, out_stride, adds,
            )  # fmt: skip
            first = last

    return multiply_rows


@cache
def tile_address(dtype: torch.dtype) -> int:
    """The address of compiled code for `multiply_tile`, for panels of the format whose memory is of that type.

    Code at an address is compiled once, whoever calls it; the products would take minutes if each had its own.
    """
    signature = types.void(types.CPointer(_number_type(dtype)), *[types.intp] * 10)
    function = _rows_function(_most_rows(format_of(dtype)), _most_rows(FLOAT32))
    return int(cfunc(signature, cache=True)(function).address)


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
        tile: the address of the code (`tile_address`), which tells the format.
        x: [rows, channels], a row every `x_stride` numbers.
        panel: [channels, PANEL] as it is kept, or in float32 where there is a room.
        following: the panel that comes next, as it is kept, which is brought from memory meanwhile; 0 for none.
        room: where it becomes float32, [channels, PANEL]; 0 for nowhere.
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
    """Bring a panel from memory, or its first channels, before any product; into a room for float32 if there is one.

    Args:
        tile: the address of the code.
        panel: the address of the panel, as it is kept.
        room: the address of float32 [channels, PANEL], or 0.
    """
    multiply_tile(tile, 0, 0, 0, 0, channels, panel, room, 0, 0, 0)
