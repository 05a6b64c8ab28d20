"""`tinyllm conform`: does a policy keep what policies promise? Random worlds, and the smallest that says no."""

from __future__ import annotations

from typing import Annotated

import typer


def conform(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="A built-in, or module:Class of your own.")],
    policy_arg: Annotated[
        list[str] | None, typer.Option(help="key=value for the policy; repeatable.")
    ] = None,
    max_examples: Annotated[int, typer.Option(min=1, help="Random worlds for each check.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Which worlds.")] = 0,
) -> None:
    """Run a policy through random worlds; show the smallest trace that breaks a promise, and exit 1 if one does.

    Example: tinyllm conform mypolicy:Mine
    """
    from functools import partial

    from experiments.options import parse_policy_args
    from tinyllm.conformance import conform as run_kit
    from tinyllm.conformance.text import report_lines
    from tinyllm.errors import IncompleteRunError
    from tinyllm.policy import make_policy

    make = partial(make_policy, policy, parse_policy_args(policy_arg or []))
    report = run_kit(make, max_examples=max_examples, seed=seed)
    for line in report_lines(report):
        typer.echo(line)
    if not report.passes:
        broken = ", ".join(fault.check.name for fault in report.faults)
        raise IncompleteRunError(f"conform {policy}: broken: {broken}; the traces are above")
