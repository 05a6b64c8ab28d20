"""`commands.md`: how to do a run again, and how to see that it was the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from experiments.bench.options import BenchOptions
from experiments.bench.plan import Plan


def commands(plan: Plan, environment: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """The page, from `environment.json` and the sha256 of each workload."""
    model = environment["model"]
    lines = ["# Reproduction", "", "```"]
    if (revision := environment["git_revision"]) is not None:
        lines.append(f"git checkout {revision.removesuffix('-dirty')}")
    lines += [
        "make setup",
        *(["make peer-vllm"] if "vllm" in plan.families else []),
        command_line(plan.options),
        "```",
        "",
    ]
    lines += [f"Model: {model['name']}, revision {model['revision'] or 'unknown'}.", ""]
    lines += ["It was the same model and the same requests if these sha256 are equal:", ""]
    lines += [f"* {name}: `{digest}`" for name, digest in ({**model["sha256"], **hashes}).items()]
    return "\n".join(lines) + "\n"


def command_line(options: BenchOptions) -> str:
    """The command that has these options; what is at its default is left out."""
    words = ["tinyllm", "bench", options.suite]
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in ("suite", "dry_run", "force") or value == option.default:
            continue
        words += [f"--{option.name.replace('_', '-')}", str(value)]
    return shlex.join(words)
