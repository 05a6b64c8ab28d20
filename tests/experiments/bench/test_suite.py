"""Suites as TOML: those that come along, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench.suite import Cohort, load_suite, suite_names
from experiments.bench.toml_table import Range
from tinyllm.errors import InputError

COHORT = '[[offline]]\nname = "a"\nprompt_tokens = [4, 9]\noutput_tokens = 6\nrequests = 2\n'
LOOP = COHORT.replace("offline", "open_loop")
TRACE = "[trace]\npositions = [0.1]\nrequests = 10\nloads = [0.5]\nprompt_buckets = [8]\n"

WRONG = {
    "no TOML": ("about = ", "cannot be read as TOML"),
    "no text": ("about = 3\n" + COHORT, "about is 3; give a text"),
    "nothing to do": ('about = "x"\n', "has no workload"),
    "a key that nothing reads": (
        'about = "x"\nrepeat = 3\n' + COHORT,
        "repeat is unknown; the keys here are",
    ),
    "repeats of nothing": (
        'about = "x"\nrepeats = 0\n' + COHORT,
        "repeats is 0; give a whole number, at least 1",
    ),
    "repeats as a truth": ('about = "x"\nrepeats = true\n' + COHORT, "repeats is True"),
    "a missing key": (
        'about = "x"\n' + COHORT.replace("requests = 2", ""),
        "[[offline]] 1: requests is missing",
    ),
    "a range backwards": ('about = "x"\n' + COHORT.replace("[4, 9]", "[9, 4]"), "prompt_tokens is [9, 4]"),
    "a range of three": ('about = "x"\n' + COHORT.replace("[4, 9]", "[1, 2, 3]"), "or [smallest, largest]"),
    "a range from nothing": ('about = "x"\n' + COHORT.replace("[4, 9]", "[0, 4]"), "prompt_tokens is [0, 4]"),
    "tokens that are none": ('about = "x"\n' + COHORT.replace("= 6", '= "6"'), "output_tokens is '6'"),
    "a name with a slash": ('about = "x"\n' + COHORT.replace('"a"', '"a/b"'), "name is 'a/b'; use a-z"),
    "a name twice": ('about = "x"\n' + COHORT + COHORT, "two workloads are named 'a'"),
    "a name twice in two kinds": (
        'about = "x"\n' + COHORT + LOOP + "loads = [0.5]\n",
        "two workloads are named 'a'",
    ),
    "loads that fall": (
        'about = "x"\n' + LOOP + "loads = [0.9, 0.5]\n",
        "loads is [0.9, 0.5]; let the numbers rise",
    ),
    "a load of nothing": ('about = "x"\n' + LOOP + "loads = [0.0]\n", "above 0 and at most 4"),
    "no loads": ('about = "x"\n' + LOOP, "loads is missing"),
    "loads that are one number": ('about = "x"\n' + LOOP + "loads = 0.5\n", "give a list of numbers"),
    "a table that is a number": ('about = "x"\ntrace = 3\n', "write it as a table, [trace]"),
    "tables that are a table": ('about = "x"\n' + COHORT.replace("[[offline]]", "[offline]"), "[[offline]]"),
    "a position past the end": ('about = "x"\n' + TRACE.replace("0.1", "1.1"), "positions is [1.1]"),
    "warm-up below nothing": ('about = "x"\n' + TRACE + "warmup = -1\n", "[trace]: warmup is -1"),
    "limits of something else": ('about = "x"\n[limits]\ne2e = 2\n' + COHORT, "[limits]: e2e is unknown"),
    "a limit of nothing": ('about = "x"\n[limits]\nttft = 0\n' + COHORT, "ttft is 0; give a number above 0"),
    "an endless limit": ('about = "x"\n[limits]\nttft = inf\n' + COHORT, "ttft is inf"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_line_that_names_file_key_and_mend(case: str, tmp_path: Path) -> None:
    text, expected = WRONG[case]
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_suite(str(path))
    assert expected in str(error.value)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["fastest", "missing.toml", "", "suites/quick"])
def test_an_unknown_suite_lists_the_known_ones(name: str) -> None:
    with pytest.raises(
        InputError, match=r"choose offline, open-loop, quick, realistic-v1, or give a .toml file"
    ):
        load_suite(name)


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_that_comes_along_can_be_read(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name and suite.about and suite.repeats >= 1


def test_the_offline_suite_has_the_published_cohorts() -> None:
    cohorts = {cohort.name: cohort for cohort in load_suite("offline").cohorts}
    sizes = {
        name: (each.prompt_tokens, each.output_tokens.low, each.requests, each.shards)
        for name, each in cohorts.items()
    }
    assert sizes == {
        "single": ((64, 64), 64, 1, 1),
        "short-chat": ((43, 256), 64, 8, 3),
        "medium-chat": ((257, 1021), 128, 8, 3),
        "long-prefill": ((1029, 3344), 64, 4, 3),
        "long-decode": ((43, 1021), 256, 8, 3),
        "batch-64": ((32, 256), 64, 64, 1),
        "correctness": ((16, 256), 32, 8, 1),
    }
    assert [name for name, each in cohorts.items() if not each.ignore_eos] == ["correctness"]


def test_the_realistic_suite_makes_twelve_replays_of_three_windows() -> None:
    suite = load_suite("realistic-v1")
    assert suite.windows is not None
    assert suite.windows.positions == (0.1, 0.5, 0.9) and suite.windows.loads == (0.25, 0.5, 0.75, 0.9)
    assert (suite.windows.requests, suite.windows.warmup) == (1000, 32)
    assert {cohort.shards for cohort in suite.cohorts} == {3}


def test_a_file_of_ones_own_is_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('about = "mine"\n' + COHORT)
    suite = load_suite(str(path))
    assert suite.cohorts == (Cohort("a", Range(4, 9), Range(6, 6), 2),)
    assert (suite.name, suite.repeats, suite.windows) == ("mine", 1, None)
