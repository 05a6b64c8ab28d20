"""docs/scheduling.md is true: its schedules are what the scheduler does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOC = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n")[0]: part for part in re.split(r"\n### ", DOC)[1:]}
SCHEDULES = {title: text for title, text in SECTIONS.items() if "| step |" in text}
OPTION = re.compile(r"--([a-z-]+) ([0-9.:]+|[a-z-]+)(?=[ `])")


def rows(text: str, heading: str) -> list[list[str]]:
    table = text[text.index(f"| {heading} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def options(section: str) -> dict[str, Any]:
    """The options of the title, and those after the word With; numbers as numbers."""
    title, body = section.split("\n", 1)
    text = title if "--batching" in title else ""
    text += "".join(re.findall(r"With `([^`]*`)", body))
    values = {name.replace("-", "_"): value for name, value in OPTION.findall(text.replace("`", " "))}
    return {name: _value(value) for name, value in values.items()}


def _value(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def test_the_page_has_a_schedule_of_every_batching_and_of_the_caps() -> None:
    assert len(SCHEDULES) == 5
    assert [options(section) for section in SCHEDULES.values()] == [
        {"batching": "mixed"},
        {"batching": "prefill-first"},
        {"batching": "static", "max_num_seqs": 2},
        {"max_num_prefill_tokens": 4},
        {"tpot_slo": 0.005, "step_estimate": "0:0.001"},
    ]


@pytest.mark.parametrize("title", SCHEDULES)
def test_the_schedule_of_the_page_is_what_the_scheduler_does(engine, title: str) -> None:
    section = SCHEDULES[title]
    stepper = engine("fcfs", block_size=4, max_num_batched_tokens=10, **options(section))
    for name, prompt, output in rows(DOC, "request"):
        stepper.add(name, int(prompt), int(output))
    served = [", ".join(f"{name} {tokens}" for name, tokens in step.rows) for step in stepper.run()]
    assert served == [computes for _, computes in rows(section, "step")]
