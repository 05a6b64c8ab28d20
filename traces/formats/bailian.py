"""Qwen-Bailian: JSON lines, seconds, ids of 16-token prefix blocks, conversations as chains of chats.

A row names its own chat and the chat it follows (−1: none). The session of a row is the chat at the root of
its chain; a chain that began before the file is named for the chat that is missing.
"""

from __future__ import annotations

from typing import Final

from traces.formats.base import Format, Parse, Source, check_id_count
from traces.formats.cells import CellError
from traces.formats.containers import Record
from traces.schema import TraceRow

BLOCK_TOKENS: Final = 16
NO_PARENT: Final = -1


def _parser(source: Source) -> Parse:
    roots: dict[int, int] = {}

    def parse(record: Record) -> TraceRow:
        chat, parent = record.integer("chat_id"), record.integer("parent_chat_id")
        if chat == parent:
            raise CellError(f"parent_chat_id is {parent}, the row's own chat_id")
        root = chat if parent == NO_PARENT else roots.get(parent, parent)
        roots[chat] = root
        prompt_tokens = record.count("input_length")
        prefix_ids = record.ids("hash_ids")
        check_id_count(prefix_ids, prompt_tokens, BLOCK_TOKENS)
        return TraceRow(
            source_row=record.source_row,
            arrival_ns=record.time("timestamp", "s"),
            prompt_tokens=prompt_tokens,
            output_tokens=record.count("output_length"),
            tenant=record.text("type"),
            session=str(root),
            prefix_ids=prefix_ids,
        )

    return parse


BAILIAN = Format(
    name="bailian",
    about="Qwen-Bailian JSON lines with 16-token prefix blocks",
    required=("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"),
    parser=_parser,
    containers=("jsonl",),
    prefix_block_size=lambda source: BLOCK_TOKENS,
)
