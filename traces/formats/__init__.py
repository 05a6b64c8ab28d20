"""The trace formats by name: a new one is one file and one line here."""

from __future__ import annotations

from typing import Final

from traces.formats.azure import AZURE
from traces.formats.bailian import BAILIAN
from traces.formats.base import Format
from traces.formats.burstgpt import BURSTGPT, BURSTGPT_SAMPLE
from traces.formats.exported import EXPORTED
from traces.formats.mooncake import MOONCAKE
from traces.formats.ragpulse import RAGPULSE
from traces.formats.splitwise import SPLITWISE_SIM
from traces.formats.table import TABLE
from traces.formats.vidur import VIDUR

# The first whose columns are all there is it: Mooncake's are a part of those of Bailian and RAGPulse.
FORMATS: Final[dict[str, Format]] = {
    known.name: known
    for known in (
        EXPORTED,
        BURSTGPT,
        BURSTGPT_SAMPLE,
        AZURE,
        VIDUR,
        SPLITWISE_SIM,
        BAILIAN,
        RAGPULSE,
        MOONCAKE,
        TABLE,
    )
}
