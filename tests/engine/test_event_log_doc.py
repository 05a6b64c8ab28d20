"""docs/event-log.md is the schema, column by column."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tinyllm.engine.record.schema import EVENT_NAMES, TABLES, WORKLOAD

PAGE = (Path(__file__).parents[2] / "docs" / "event-log.md").read_text(encoding="utf-8")
SCHEMAS = {**TABLES, "workload.parquet": WORKLOAD}
TYPES = {pa.string(): "string", pa.int64(): "int64", pa.float64(): "float64", pa.bool_(): "bool"}


def documented_columns(table: str) -> list[tuple[str, str]]:
    section = PAGE.split(f"\n## `{table}`")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| ([\w<>]+) \|", section, re.MULTILINE)


@pytest.mark.parametrize("table", SCHEMAS)
def test_the_page_has_every_column_of_the_schema_in_order_with_its_type(table: str) -> None:
    columns = [(field.name, TYPES.get(field.type, "list<int64>")) for field in SCHEMAS[table]]
    assert documented_columns(table) == columns


def test_the_page_names_every_event() -> None:
    section = PAGE.split("\n## `events`")[1].split("\n## ")[0]
    assert [event for event in EVENT_NAMES if f"`{event}`" not in section] == []
