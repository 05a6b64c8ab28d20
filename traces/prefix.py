"""The ideal prefix cache: infinite, sequential, what no real cache can beat."""

from __future__ import annotations

from tinyllm.errors import InputError
from traces.schema import TraceRow


class IdealPrefixCache:
    """Prefix hits in tokens when every earlier row's whole prompt is cached, rows served one after another.

    A hit is a leading run of blocks whose ids earlier rows had. A partial last block covers a part of its id's
    tokens, so a share of it counts as far as both rows cover it. At least one token of each row is computed.

    Args:
        prefix_block_size: tokens that one prefix id stands for.
        block_size: KV block: only full blocks wholly inside the prompt count. 1 counts single tokens.

    Raises:
        InputError: `block_size` does not divide `prefix_block_size`.
    """

    def __init__(self, prefix_block_size: int, block_size: int = 1) -> None:
        if block_size < 1 or prefix_block_size % block_size:
            raise InputError(
                f"--block-size: {block_size} does not divide the {prefix_block_size} tokens of a prefix id"
            )
        self._prefix_block_size = prefix_block_size
        self._block_size = block_size
        self._covered: dict[int, int] = {}

    def hit_tokens(self, row: TraceRow) -> int:
        """Tokens of the row's prompt that are cached; its blocks are cached from now on."""
        hit, leading = 0, True
        for index, block_id in enumerate(row.prefix_ids or ()):
            tokens = min(self._prefix_block_size, row.prompt_tokens - index * self._prefix_block_size)
            usable = self._full_blocks(tokens)
            covered = self._covered.get(block_id, 0)
            if leading:
                hit += min(usable, covered)
                leading = covered >= usable
            if usable > covered:
                self._covered[block_id] = usable
        return min(hit, self._full_blocks(max(row.prompt_tokens - 1, 0)))

    def _full_blocks(self, tokens: int) -> int:
        return tokens - tokens % self._block_size
