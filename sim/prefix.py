"""Block hashes of simulated prompts, from the prefix ids of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyllm.engine.output import private_hash
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.errors import InputError
from tinyllm.policy.request import BlockHash


def prompt_hasher(
    block_size: int, prefix_block_size: int | None
) -> Callable[[ArrivalRecord], Sequence[BlockHash]]:
    """A function that gives the hashes of a record's full prompt blocks.

    The trace's id h of a larger block stands for its sub-blocks (h, 0), (h, 1) …, as the integers
    `h · ratio + j`. Ids are prefix identities (an equal id implies an equal prefix), so these need no
    chaining. A prompt without ids shares nothing but with itself after a preemption.

    Raises:
        InputError: `block_size` does not divide the trace's.
    """
    if prefix_block_size is not None and prefix_block_size % block_size:
        raise InputError(
            f"--block-size {block_size} does not divide the trace's prefix blocks of "
            f"{prefix_block_size} tokens: choose a divisor, e.g. 16"
        )
    ratio = (prefix_block_size or block_size) // block_size

    def hashes(record: ArrivalRecord) -> Sequence[BlockHash]:
        full_blocks = record.prompt_tokens // block_size
        if record.prefix_ids is None:
            return [private_hash(record.request_id, block) for block in range(full_blocks)]
        blocks = [h * ratio + j for h in record.prefix_ids for j in range(ratio)]
        return blocks[:full_blocks]

    return hashes
