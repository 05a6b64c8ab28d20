"""The docs of benchmarks: their suite can be read, their tables are the code's, and every test they name is there."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.bench.directory import FILES
from experiments.bench.gates import RUN_RULES
from experiments.bench.raw import RAW
from experiments.bench.suite import load_suite, suite_names
from tinyllm.engine.record.manifest import MANIFEST

ROOT = Path(__file__).parents[3]
BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
STATUS = (ROOT / "docs/status.md").read_text(encoding="utf-8")


def test_the_suite_of_the_docs_can_be_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", BENCHMARKS, flags=re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(example)
    suite = load_suite(str(path))
    assert (
        suite.repeats == 3 and suite.windows is not None and len(suite.open_loops) == len(suite.cohorts) == 1
    )


def test_the_table_of_cohorts_is_that_of_the_offline_suite() -> None:
    for cohort in load_suite("offline").cohorts:
        low, high = (f"{end:,}" for end in cohort.prompt_tokens)
        lengths = low if low == high else f"{low}–{high}"
        sizes = str(cohort.requests) if cohort.shards == 1 else f"{cohort.requests} × {cohort.shards}"
        output = str(cohort.output_tokens.high)
        if not cohort.ignore_eos:
            output = f"at most {output}, EOS kept"
        assert f"| {cohort.name} | {lengths} | {output} | {sizes} |" in BENCHMARKS


def test_every_suite_gate_and_file_is_described() -> None:
    for name in (*suite_names(), *FILES, RAW, MANIFEST):
        assert f"`{name}`" in BENCHMARKS, name
    for gate in (*RUN_RULES, "requests are handed over when they are due", "engines give equal tokens"):
        assert f"| {gate} |" in BENCHMARKS, gate


def test_every_test_that_the_support_matrix_names_is_there() -> None:
    named = set(re.findall(r"`([a-z_/]+/test_[a-z_]+\.py)`", STATUS))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()] == []
