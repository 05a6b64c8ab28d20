"""The kit passes every built-in policy, and finds the fault in each broken one, in at most ten requests."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tinyllm.conformance import CHECKS, Report, ViolationError, World, conform
from tinyllm.conformance.limits import check_batch
from tinyllm.conformance.stepper import Stepper
from tinyllm.conformance.text import report_lines
from tinyllm.policy import POLICIES, Request, SchedulingPolicy, make_policy

HERE = Path(__file__).parent
PLANTED = [
    ("LastInFirstOut", "fair to twins", "starved: r"),
    ("LeastProgressFirst", "ends", "starved: "),
    ("Lottery", "repeatable", "differs: in one run "),
    ("Clairvoyant", "blind", "differs: with the true output lengths "),
    ("Grudge", "ends", "held for ever: "),
    ("Corrector", "reads only", "on_tokens wrote to r"),
    ("Impatient", "stable", "stable_waiting is promised"),
    ("FalseHorizon", "promises", "differs: as its promises let the scheduler do "),
    ("Refunding", "charges", "negative charge: "),
]


@pytest.fixture(scope="module")
def broken() -> ModuleType:
    """The policies of broken.py."""
    spec = spec_from_file_location("broken", HERE / "broken.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(report: Report) -> str:
    return "\n".join(report_lines(report))


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_built_in_policy_passes(name: str) -> None:
    report = conform(partial(make_policy, name), max_examples=10)
    assert report.passes, lines(report)
    assert report.worlds == len(CHECKS) * 10
    # Early rejection and full queues refuse other requests under another policy.
    assert min(report.measures.requests, report.baseline.requests) > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", list(POLICIES))
def test_every_built_in_policy_passes_in_many_worlds(name: str) -> None:
    report = conform(partial(make_policy, name), max_examples=60, seed=1)
    assert report.passes, lines(report)


@pytest.mark.parametrize(("name", "check", "what"), PLANTED)
def test_the_fault_of_a_broken_policy_is_found_in_at_most_ten_requests(
    broken: ModuleType, name: str, check: str, what: str
) -> None:
    report = conform(getattr(broken, name), max_examples=15)
    found = {fault.check.name: fault for fault in report.faults}
    assert check in found, lines(report)
    assert what in found[check].what
    assert all(len(fault.world.arrivals) <= 10 for fault in report.faults)
    assert f"FAIL {check}" in lines(report)
    assert len(found) == 1 or name in ("Lottery", "Impatient")  # nothing else is said of the others


def test_the_trace_that_is_shown_shows_the_fault_again(broken: ModuleType) -> None:
    (fault,) = conform(broken.Grudge, max_examples=15).faults
    with pytest.raises(ViolationError, match="held for ever"):
        fault.check.run(broken.Grudge, fault.world)
    stepper = fault.world.run(broken.Grudge())
    assert [r.num_preemptions for r in stepper.scheduler.unfinished()] == [1]
    fault.check.run(lambda: make_policy("fcfs"), fault.world)


def test_the_same_arguments_give_the_same_report(broken: ModuleType) -> None:
    one, other, third = (conform(broken.Refunding, max_examples=10, seed=seed) for seed in (0, 0, 3))
    assert lines(one) == lines(other)
    assert third.worlds != one.worlds or lines(third) != lines(one)


def test_a_policy_that_raises_is_a_fault_and_not_a_traceback() -> None:
    class Mixed(SchedulingPolicy):
        def key(self, view: Request, now: int) -> tuple[Any]:
            return (view.tenant,)  # None and text do not compare

    report = conform(Mixed, max_examples=15)
    assert any("raised TypeError" in fault.what for fault in report.faults)


def test_a_fault_says_where_a_policy_raised() -> None:
    class Forgetful(SchedulingPolicy):
        def key(self, view: Request, now: int) -> tuple[int]:
            raise KeyError(view.request_id)

    fault = conform(Forgetful, max_examples=1).faults[0]
    assert re.fullmatch(r"raised KeyError\('r\d'\) \(test_conformance\.py, line \d+\)", fault.what)


def test_a_policy_that_writes_to_its_views_is_found() -> None:
    class Meddler(SchedulingPolicy):
        def key(self, view: Request, now: int) -> tuple[int]:
            return (view.arrival,)

        def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
            view.num_computed_tokens = 0

    assert any(fault.check.name == "ends" for fault in conform(Meddler, max_examples=15).faults)


def test_a_request_held_until_its_time_comes_is_not_held_for_ever() -> None:
    class OneAMinute(SchedulingPolicy):
        def key(self, view: Request, now: int) -> tuple[int] | None:
            return (view.arrival,) if now >= view.index * 60_000_000_000 else None

    report = conform(OneAMinute, max_examples=15)
    assert report.passes, lines(report)


def test_a_batch_whose_sums_are_wrong_is_no_batch() -> None:
    stepper = Stepper(num_gpu_blocks=8)
    stepper.add("a", 10, output=3)
    batch = stepper.scheduler.schedule(0)
    assert batch is not None
    check_batch(stepper.scheduler, batch)
    batch.prefill_tokens += 1
    with pytest.raises(ViolationError, match="prefill_tokens is 11, its rows give 10"):
        check_batch(stepper.scheduler, batch)


def test_a_wait_is_measured_in_steps_from_arrival_to_admission() -> None:
    from tinyllm.conformance.measures import Measures

    stepper = Stepper(max_num_seqs=1)
    stepper.step()
    stepper.add("a", 4, output=3)
    stepper.add("b", 4, output=1)
    stepper.run()
    measures = Measures()
    measures.add(stepper)
    assert (measures.requests, measures.longest_wait, measures.preemptions) == (2, 3, 0)


def test_worlds_have_pressure_preemptions_hits_aborts_ties_and_refusals() -> None:
    from random import Random

    worlds = [World.draw(Random(f"world {i}"), most_requests=10) for i in range(200)]
    runs = [world.run("priority") for world in worlds]
    requests = [request for run in runs for request in run.requests.values()]
    assert max(len(world.arrivals) for world in worlds) == 10
    assert sum(request.num_preemptions for request in requests) > 100
    assert sum(request.num_cached_tokens for request in requests) > 50
    assert any(a.abort_step is not None for world in worlds for a in world.arrivals)
    assert any(len({a.step for a in world.arrivals}) < len(world.arrivals) for world in worlds)
    assert len(requests) < sum(len(world.arrivals) for world in worlds)


def test_the_command_prints_the_trace_and_exits_with_1() -> None:
    command = [sys.executable, "-c", "import tinyllm.cli; tinyllm.cli.main()", "conform"]
    run = partial(subprocess.run, cwd=HERE, capture_output=True, text=True)
    bad = run([*command, "broken:Grudge", "--max-examples", "25"])
    assert bad.returncode == 1
    assert bad.stderr == "tinyllm: conform broken:Grudge: broken: ends; the traces are above\n"
    assert "held for ever" in bad.stdout and "max_tokens" in bad.stdout
    good = run([*command, "vtc", "--policy-arg", "output_weight=3", "--max-examples", "5"])
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.count("ok  ") == len(CHECKS)
    wrong = run([*command, "nosuch"])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nosuch: unknown; choose fcfs" in wrong.stderr
