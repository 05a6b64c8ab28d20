"""A report of the kit as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinyllm.conformance.checks import CHECKS
from tinyllm.conformance.kit import Fault, Report
from tinyllm.conformance.stepper import STEP_NS
from tinyllm.conformance.world import Arrival, World
from tinyllm.policy import SchedulerConfig

_SIZES = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
_COLUMNS = (
    "request",
    "step",
    "prompt",
    "output",
    "max_tokens",
    "priority",
    "tenant",
    "predicted",
    "due",
    "abort",
)


def report_lines(report: Report) -> Iterator[str]:
    """A line for each check, the trace of each fault, and the measures."""
    faults = {fault.check.name: fault for fault in report.faults}
    for check in CHECKS:
        fault = faults.get(check.name)
        yield f"{'FAIL' if fault else 'ok  '} {check.name:<13} {check.promise}"
        if fault:
            yield from _fault_lines(fault)
    mine, fcfs = report.measures, report.baseline
    yield f"{report.worlds:,} worlds; in the {mine.requests:,} requests of those that ended, beside fcfs:"
    yield f"  longest wait           {mine.longest_wait:,} steps ({fcfs.longest_wait:,})"
    yield (
        f"  preemptions a request  {mine.preemptions_per_request:.2f}, most {mine.most_preemptions} "
        f"({fcfs.preemptions_per_request:.2f}, most {fcfs.most_preemptions})"
    )


def world_lines(world: World) -> Iterator[str]:
    """A world as a line of options and a table of requests."""
    yield f"{len(world.arrivals)} requests, {_config(world)}"
    rows = [_COLUMNS, *(_row(arrival) for arrival in world.arrivals)]
    shown = [i for i, name in enumerate(_COLUMNS) if i < 5 or any(row[i] != "—" for row in rows[1:])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(row[i].rjust(widths[i]) for i in shown)


def _fault_lines(fault: Fault) -> Iterator[str]:
    for line in (fault.what, *world_lines(fault.world)):
        yield f"     {line}"


def _config(world: World) -> str:
    """The sizes, and what else differs from the defaults."""
    return ", ".join(
        f"{option} {value}"
        for option, value in world.config.items()
        if option in _SIZES or value != getattr(SchedulerConfig, option)
    )


def _row(arrival: Arrival) -> Sequence[str]:
    fields = arrival.fields
    due = fields.get("ttft_deadline")
    prompt = f"{arrival.prompt} {''.join(fields.get('block_hashes', [])[-1:])}".strip()
    cells = (
        arrival.name,
        arrival.step,
        prompt,
        arrival.output
        if arrival.output == arrival.other_output
        else f"{arrival.output}|{arrival.other_output}",
        fields["max_tokens"],
        fields.get("priority") or None,
        fields.get("tenant"),
        fields.get("predicted_output_tokens"),
        None if due is None else due // STEP_NS,
        arrival.abort_step,
    )
    return tuple("—" if cell is None else str(cell) for cell in cells)
