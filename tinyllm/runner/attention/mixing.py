"""Values of a paged context, weighted and summed: block after block, while the sums stay in registers.

Written in LLVM's terms, of the same parts as the tile of a product: a block of sixteen tokens is too little for a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tinyllm.models.formats.base import GROUP, PANEL
from tinyllm.models.tile import TILE_ROWS, Turns, sum_channels
from tinyllm.models.vectors import BYTE, INT, LANES, VECTOR, WORD, at, load, prefetch, store, word

_BLOCKS_AHEAD = 2
"""How early a block is asked for."""


def _mix_of(num_rows: int) -> Callable[..., None]:
    @intrinsic  # type: ignore[untyped-decorator]
    def mix(
        _: Any,
        weights: Any,
        stride: Any,
        values: Any,
        table: Any,
        blocks: Any,
        block_bytes: Any,
        block_size: Any,
        last_size: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, stride, values, table, blocks, block_bytes, block_size, last_size, out, out_stride = arguments
            weights, values, table, out = (
                builder.inttoptr(address, BYTE.as_pointer()) for address in (weights, values, table, out)
            )
            last = builder.sub(blocks, word(1))

            def block_at(number: Any) -> Any:
                entry = builder.sext(load(builder, at(builder, table, number, 4), INT), WORD)
                return builder.gep(values, [builder.mul(entry, block_bytes)])

            def rows_at(start: Any, numbers: Any) -> list[Any]:
                size = builder.mul(numbers, word(4))
                return [builder.gep(start, [builder.mul(size, word(row))]) for row in range(num_rows)]

            before = builder.block
            loop, after = builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            number = builder.phi(WORD)
            number.add_incoming(word(0), before)
            phis = [builder.phi(VECTOR) for _ in range(num_rows * PANEL // LANES)]
            for phi in phis:
                phi.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
            ahead = builder.add(number, word(_BLOCKS_AHEAD))
            coming = block_at(builder.select(builder.icmp_signed("<", ahead, last), ahead, last))

            def fetch(group: Any) -> None:
                size = 4 * GROUP * PANEL
                prefetch(builder, at(builder, coming, group, size), size)

            panel = block_at(number)
            rows = rows_at(at(builder, weights, builder.mul(number, block_size), 4), stride)
            is_last = builder.icmp_signed("==", number, last)
            tokens = builder.select(is_last, last_size, block_size)
            even = builder.and_(tokens, word(-GROUP))
            sums = sum_channels(
                builder, rows, panel, (word(0), even), GROUP, phis, Turns(word(0), word(1), word(0), fetch)
            )
            none = Turns(word(-1), word(-1), word(0), lambda _: None)
            sums = sum_channels(builder, rows, panel, (even, tokens), 1, sums, none)
            end = builder.block
            following = builder.add(number, word(1))
            number.add_incoming(following, end)
            for phi, value in zip(phis, sums, strict=True):
                phi.add_incoming(value, end)
            builder.cbranch(is_last, after, loop)

            builder.position_at_end(after)
            vectors = PANEL // LANES
            places = rows_at(out, out_stride)
            for each, value in enumerate(sums):
                place = builder.gep(places[each // vectors], [word(4 * LANES * (each % vectors))])
                store(builder, value, place)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 10), generate

    return mix  # type: ignore[no-any-return]


_one, _two, _three, _four, _five, _six = (_mix_of(rows) for rows in range(1, TILE_ROWS + 1))


@njit(cache=True)  # type: ignore[untyped-decorator]
def mix_values(
    weights: Any, stride: Any, rows: Any, values: Any, table: Any, blocks: Any, block_bytes: Any, block_size: Any,
    last_size: Any, out: Any, out_stride: Any,
) -> None:  # fmt: skip
    """`out[r] = Σ weights[r, t] · values[t]` over the tokens t of some blocks, over addresses of float32.

    Args:
        weights: [rows, tokens], a row every `stride` numbers.
        values: where block 0 of the cache has its [block_size, PANEL].
        table: of int32, the numbers of the blocks.
        blocks: how many, at least 1.
        block_bytes: from a block of the cache to the next one.
        last_size: tokens of the last block.
        out: [rows, PANEL], a row every `out_stride` numbers.
    """
    first = 0
    while first < rows:
        size, place, into = min(rows - first, TILE_ROWS), weights + 4 * first * stride, out + 4 * first * out_stride
        if size == 6:
            _six(place, stride, values, table, blocks, block_bytes, block_size, last_size, into, out_stride)
        elif size == 5:
            _five(place, stride, values, table, blocks, block_bytes, block_size, last_size, into, out_stride)
        elif size == 4:
            _four(place, stride, values, table, blocks, block_bytes, block_size, last_size, into, out_stride)
        elif size == 3:
            _three(place, stride, values, table, blocks, block_bytes, block_size, last_size, into, out_stride)
        elif size == 2:
            _two(place, stride, values, table, blocks, block_bytes, block_size, last_size, into, out_stride)
        else:
            _one(place, stride, values, table, blocks, block_bytes, block_size, last_size, into, out_stride)
        first += size
