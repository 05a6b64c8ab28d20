"""The conformance kit: random worlds for a scheduling policy, and the smallest trace that breaks a promise."""

from tinyllm.conformance.checks import CHECKS, Check
from tinyllm.conformance.kit import Fault, Report, conform
from tinyllm.conformance.limits import ViolationError
from tinyllm.conformance.stepper import Step, Stepper
from tinyllm.conformance.world import Arrival, World

__all__ = [
    "CHECKS",
    "Arrival",
    "Check",
    "Fault",
    "Report",
    "Step",
    "Stepper",
    "ViolationError",
    "World",
    "conform",
]
