from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tinyllm.bridge.environment import child_environment, vllm_python
from tinyllm.errors import InputError


@pytest.fixture(scope="session")
def python_with_vllm() -> Path:
    """The Python of an environment that has vLLM."""
    try:
        return vllm_python("these tests")
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def inside(python_with_vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `inside.py` found: one child for all tests, for to import vLLM takes longer than they do."""
    child = subprocess.run(
        [python_with_vllm, Path(__file__).with_name("inside.py"), tmp_path_factory.mktemp("logs")],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=280,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found
