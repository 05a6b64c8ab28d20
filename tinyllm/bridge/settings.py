"""What the scheduler inside vLLM is told: which policy, and where to log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tinyllm.errors import InputError

POLICY_VARIABLE: Final = "TINYLLM_POLICY"
POLICY_ARGS_VARIABLE: Final = "TINYLLM_POLICY_ARGS"
LOG_VARIABLE: Final = "TINYLLM_LOG"


@dataclass(frozen=True)
class BridgeSettings:
    """Given to vLLM as `--additional-config '{"tinyllm": {"policy": "srpt"}}'`, or by environment variables.

    Attributes:
        policy: a name, or `module:Class` (`TINYLLM_POLICY`).
        policy_args: its arguments (`TINYLLM_POLICY_ARGS`, a JSON object).
        log: directory for the event log of all that is served, missing or empty (`TINYLLM_LOG`).
    """

    policy: str = "fcfs"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    log: Path | None = None

    @classmethod
    def read(cls, additional_config: object, environment: Mapping[str, str] = os.environ) -> BridgeSettings:
        """What is configured; the configuration wins over the environment.

        Raises:
            InputError: an unknown setting, or arguments that are no JSON object.
        """
        given: dict[str, Any] = {}
        for name, variable in (
            ("policy", POLICY_VARIABLE),
            ("policy_args", POLICY_ARGS_VARIABLE),
            ("log", LOG_VARIABLE),
        ):
            if variable in environment:
                given[name] = environment[variable]
        if isinstance(additional_config, dict):
            given |= additional_config.get("tinyllm", {})
        if unknown := sorted(given.keys() - {"policy", "policy_args", "log"}):
            raise InputError(
                f"additional-config: tinyllm.{unknown[0]}: unknown; choose policy, policy_args or log"
            )
        log = given.get("log")
        return cls(
            policy=given.get("policy", "fcfs"),
            policy_args=_arguments(given.get("policy_args", {})),
            log=None if log is None else Path(log),
        )


def _arguments(given: object) -> dict[str, Any]:
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InputError(f'{POLICY_ARGS_VARIABLE} {given}: give a JSON object, e.g. {{"preemptive": false}}')
    return arguments
