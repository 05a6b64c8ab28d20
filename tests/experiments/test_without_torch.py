"""Simulation in an environment that has no torch (nor anything else of the engine's extra)."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    NAMES = ("torch", "transformers", "tokenizers", "safetensors", "numba", "jinja2", "triton", "gguf")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without_torch(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_finder_of_these_tests_hides_torch() -> None:
    assert "No module named 'torch'" in run_without_torch("import torch").stderr


@pytest.mark.parametrize("package", ["tinyllm", "sim", "traces", "analysis", "experiments.replay"])
def test_the_packages_of_the_simulation_import(package: str) -> None:
    walk = """
import importlib, pkgutil
NEEDS_TORCH = ("tinyllm.runner", "tinyllm.models", "tinyllm.bridge")
ENGINE = ("tinyllm.engine.core", "tinyllm.engine.output", "tinyllm.engine.runner")
package = importlib.import_module(sys.argv[1])
names = [m.name for m in pkgutil.walk_packages(getattr(package, "__path__", []), sys.argv[1] + ".", lambda name: None)
         if not m.name.startswith(NEEDS_TORCH)]
for name in names:
    if not name.startswith("tinyllm.engine.") or name in ENGINE or name.startswith("tinyllm.engine.record"):
        importlib.import_module(name)
print(len(names))
"""
    ended = run_without_torch(walk, package)
    assert ended.returncode == 0, ended.stderr
    assert package == "experiments.replay" or int(ended.stdout) > 3


def test_the_smoke_run_passes(tmp_path: object) -> None:
    code = """
from pathlib import Path
from experiments.smoke import smoke
print(smoke(Path(sys.argv[1])))
"""
    ended = run_without_torch(code, f"{tmp_path}/smoke")
    assert ended.returncode == 0, ended.stderr
    assert "equal tokens under every policy" in ended.stdout


def test_a_real_replay_says_which_extra_is_missing(tmp_path: object) -> None:
    code = "import tinyllm.cli; sys.argv[0] = 'tinyllm'; tinyllm.cli.main()"
    arguments = ["replay", "trace.csv", "--mode", "real", "--model", "m", "--out", f"{tmp_path}/run"]
    ended = run_without_torch(code, *arguments)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "tinyllm[engine]" in ended.stderr
