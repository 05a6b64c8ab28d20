"""Block hashes of simulated prompts, from the prefix ids of a trace and from its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tinyllm.engine.output import private_hash
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Histories, Inherited, Turn
from tinyllm.errors import InputError
from tinyllm.policy.request import BlockHash, Request


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


class SessionHasher:
    """Hashes of prompts, of which a turn's begins with those of the turn whose history it contains.

    What follows the history hashes as it does without, apart from one thing: equal prefix ids are equal
    content only after equal content, so blocks after a generated answer are told apart by whose it is.

    Args:
        records: the workload.
        turns: of its sessions.
        block_size: of the KV cache.
        prefix_block_size: tokens that one prefix id of the trace stands for.

    Raises:
        InputError: `block_size` does not divide the trace's.
    """

    def __init__(
        self,
        records: Iterable[ArrivalRecord],
        turns: Mapping[str, Turn],
        block_size: int,
        prefix_block_size: int | None,
    ) -> None:
        self._own_hashes = prompt_hasher(block_size, prefix_block_size)
        self._histories: Histories[BlockHash] = Histories(turns)
        contained = {turn.history for turn in turns.values()}
        self._contained = {r.request_id: r for r in records if r.request_id in contained}
        self._block_size = block_size
        self._prefix_block_size = prefix_block_size

    def start(self, record: ArrivalRecord, submitted_ns: int) -> list[BlockHash]:
        """The hashes of the full blocks of an accepted request's prompt; to be asked once for each."""
        own = list(self._own_hashes(record))
        inherited = self._histories.inherit(record.request_id, submitted_ns)
        hashes = own if inherited is None else self._after(inherited, own, record)
        self._histories.start(record.request_id, hashes)
        return hashes

    def end(self, request: Request, end_ns: int) -> None:
        """A request ended, for whatever reason."""
        output = request.block_hashes[request.num_prompt_tokens // self._block_size :]
        self._histories.end(request.request_id, output, end_ns)

    def _after(
        self, inherited: Inherited[BlockHash], own: list[BlockHash], record: ArrivalRecord
    ) -> list[BlockHash]:
        kept = list(inherited.content[: len(own)])
        if record.prefix_ids is None:
            return kept + own[len(kept) :]
        if not inherited.ended and kept == own[: len(kept)] and self._ends_alike(inherited, record):
            return own
        whose = (inherited.request_id, inherited.ended)
        return kept + [(whose, block) for block in own[len(kept) :]]

    def _ends_alike(self, inherited: Inherited[BlockHash], record: ArrivalRecord) -> bool:
        """Whether the ids say that the inherited prompt's last, partial prefix block is the record's, too."""
        before, block_size = self._contained[inherited.request_id], self._prefix_block_size
        if before.prefix_ids is None or record.prefix_ids is None or block_size is None:
            return False
        last, rest = divmod(before.prompt_tokens, block_size)
        return rest == 0 or before.prefix_ids[last] == record.prefix_ids[last]
