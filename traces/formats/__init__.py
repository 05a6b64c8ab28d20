"""The trace formats by name: a new one is one file and one line here."""

from __future__ import annotations

from typing import Final

from traces.formats.azure import AZURE
from traces.formats.base import Format
from traces.formats.burstgpt import BURSTGPT, BURSTGPT_SAMPLE
from traces.formats.exported import EXPORTED
from traces.formats.mooncake import MOONCAKE
from traces.formats.table import TABLE

FORMATS: Final[dict[str, Format]] = {
    known.name: known for known in (EXPORTED, BURSTGPT, BURSTGPT_SAMPLE, AZURE, MOONCAKE, TABLE)
}
