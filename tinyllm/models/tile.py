"""The heart of every matrix product, in LLVM's terms, for no compiler finds it by itself.

Up to six rows of x times sixteen columns, whose sums stay in vector registers from the first to the last channel (Goto
and van de Geijn 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tinyllm.models.vectors import FLOAT, FUSED, INT, LANES, VECTOR, WORD, broadcast

PANEL: Final = 16
"""Columns of a tile: neighbours in memory."""

TILE_ROWS: Final = 6
"""Rows of the largest tile: 6 × 16 sums are twelve registers of eight, which leaves four for what they need."""

_UNROLLED: Final = 4


def _index(value: int) -> ir.Constant:
    return ir.Constant(WORD, value)


def _floats(builder: Any, address: Any, offset: Any) -> Any:
    """The pointer to float number `offset` behind an address."""
    return builder.inttoptr(builder.add(address, builder.mul(offset, _index(4))), FLOAT.as_pointer())


def _load(builder: Any, pointer: Any, kind: Any) -> Any:
    loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    loaded.align = 4
    return loaded


def _prefetch(builder: Any, pointer: Any) -> None:
    """Have a cache line brought into the second-level cache; an address where nothing lies does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, INT, INT, INT])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    read, locality, data = 0, 2, 1
    builder.call(function, [pointer, *(ir.Constant(INT, value) for value in (read, locality, data))])


def _add_channel(
    builder: Any, rows: Sequence[Any], panels: tuple[Any, Any, Any], channel: Any, sums: Sequence[Any]
) -> list[Any]:
    """The sums after one more channel; row by row, each of its vectors."""
    panel, following, stride = panels
    _prefetch(builder, builder.gep(following, [builder.mul(channel, stride)]))
    base = builder.mul(channel, _index(PANEL))
    weights = [
        _load(builder, builder.gep(panel, [builder.add(base, _index(lane))]), VECTOR)
        for lane in range(0, PANEL, LANES)
    ]
    added = []
    for number, row in enumerate(rows):
        value = broadcast(builder, _load(builder, builder.gep(row, [channel]), FLOAT))
        for vector, weight in enumerate(weights):
            product = builder.fmul(value, weight, flags=FUSED)
            added.append(builder.fadd(product, sums[number * len(weights) + vector], flags=FUSED))
    return added


def _sum_channels(
    builder: Any,
    rows: Sequence[Any],
    panels: tuple[Any, Any, Any],
    bounds: tuple[Any, Any],
    step: int,
    sums: Sequence[Any],
) -> list[Any]:
    """A loop over the channels in `bounds`, `step` at a time, whose number is a multiple of it."""
    before = builder.block
    loop, after = builder.append_basic_block(), builder.append_basic_block()
    first, last = bounds
    builder.cbranch(builder.icmp_signed("<", first, last), loop, after)

    builder.position_at_end(loop)
    channel = builder.phi(WORD)
    channel.add_incoming(first, before)
    phis = [builder.phi(VECTOR) for _ in sums]
    for phi, start in zip(phis, sums, strict=True):
        phi.add_incoming(start, before)
    current: list[Any] = list(phis)
    for offset in range(step):
        current = _add_channel(builder, rows, panels, builder.add(channel, _index(offset)), current)
    following = builder.add(channel, _index(step))
    channel.add_incoming(following, loop)
    for phi, value in zip(phis, current, strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, after)

    builder.position_at_end(after)
    results = []
    for start, value in zip(sums, current, strict=True):
        result = builder.phi(VECTOR)
        result.add_incoming(start, before)
        result.add_incoming(value, loop)
        results.append(result)
    return results


def _store(builder: Any, out: Sequence[Any], sums: Sequence[Any], adds: Any) -> None:
    vectors = PANEL // LANES
    with builder.if_else(builder.icmp_signed("!=", adds, _index(0))) as (to_add, to_set):
        for branch, is_added in ((to_add, True), (to_set, False)):
            with branch:
                for number, total in enumerate(sums):
                    lane = _index(number % vectors * LANES)
                    place = builder.gep(out[number // vectors], [lane])
                    value = builder.fadd(total, _load(builder, place, VECTOR)) if is_added else total
                    builder.store(value, builder.bitcast(place, VECTOR.as_pointer())).align = 4


def _tile_of(num_rows: int) -> Callable[..., None]:
    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any,
        x: Any,
        x_stride: Any,
        panel: Any,
        following: Any,
        stride: Any,
        channels: Any,
        out: Any,
        out_stride: Any,
        adds: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, x_stride, panel, following, stride, channels, out, out_stride, adds = arguments
            rows = [_floats(builder, x, builder.mul(x_stride, _index(row))) for row in range(num_rows)]
            panels = _floats(builder, panel, _index(0)), _floats(builder, following, _index(0)), stride
            sums: list[Any] = [ir.Constant(VECTOR, [0.0] * LANES)] * (num_rows * PANEL // LANES)
            even = builder.and_(channels, _index(-_UNROLLED))
            sums = _sum_channels(builder, rows, panels, (_index(0), even), _UNROLLED, sums)
            sums = _sum_channels(builder, rows, panels, (even, channels), 1, sums)
            into = [_floats(builder, out, builder.mul(out_stride, _index(row))) for row in range(num_rows)]
            _store(builder, into, sums, adds)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), generate

    return tile  # type: ignore[no-any-return]


_one, _two, _three, _four, _five, _six = (_tile_of(rows) for rows in range(1, TILE_ROWS + 1))


@njit(cache=True)  # type: ignore[untyped-decorator]
def multiply_tile(
    x: Any,
    x_stride: Any,
    rows: Any,
    panel: Any,
    following: Any,
    channels: Any,
    out: Any,
    out_stride: Any,
    adds: Any,
) -> None:
    """`out = x @ panel`, or `out += x @ panel` if `adds` is not 0, over addresses of float32.

    Args:
        x: [rows, channels], a row every `x_stride` numbers.
        panel: [channels, PANEL], contiguous.
        following: the panel that comes next, which is fetched from memory meanwhile.
        out: [rows, PANEL], a row every `out_stride` numbers.
    """
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    # Each tile fetches its part of what follows, evenly: memory and arithmetic are then busy at the same time.
    stride = (PANEL + tiles - 1) // tiles
    first = 0
    for tile in range(tiles):
        # As even as can be: a tile of one or two rows waits for its own sums.
        last = rows * (tile + 1) // tiles
        ahead = following + 4 * (channels * PANEL * tile // tiles)
        size, x_row, out_row = last - first, x + 4 * first * x_stride, out + 4 * first * out_stride
        if size == 6:
            _six(x_row, x_stride, panel, ahead, stride, channels, out_row, out_stride, adds)
        elif size == 5:
            _five(x_row, x_stride, panel, ahead, stride, channels, out_row, out_stride, adds)
        elif size == 4:
            _four(x_row, x_stride, panel, ahead, stride, channels, out_row, out_stride, adds)
        elif size == 3:
            _three(x_row, x_stride, panel, ahead, stride, channels, out_row, out_stride, adds)
        elif size == 2:
            _two(x_row, x_stride, panel, ahead, stride, channels, out_row, out_stride, adds)
        else:
            _one(x_row, x_stride, panel, ahead, stride, channels, out_row, out_stride, adds)
        first = last
