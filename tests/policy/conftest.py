from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tinyllm.conformance import Stepper, World

# A machine under load is no failure: no test here is about time.
settings.register_profile("policy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("policy")


@pytest.fixture(scope="session")
def engine() -> type[Stepper]:
    """The conformance kit's stepper: tests make engines of the sizes they need."""
    return Stepper


@pytest.fixture(scope="session")
def world() -> type[World]:
    """The conformance kit's worlds: tests draw random ones."""
    return World
