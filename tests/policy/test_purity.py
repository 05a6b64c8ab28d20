"""The policy core reads no clock, draws no random number of its own and touches no file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinyllm.policy

SOURCES = sorted(Path(tinyllm.policy.__file__).parent.rglob("*.py"))
PURE = {
    "__future__",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "itertools",
    "math",
    "operator",
    "random",
    "statistics",
    "sys",
    "types",
    "typing",
}
LOADS_USER_CODE = {"importlib"}
"""For `module:Class`: the registry alone needs it."""
FORBIDDEN_CALLS = {"open", "print", "input", "hash", "id", "exec", "eval"}


def imports(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Each imported module, and the names that are taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, set()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", {alias.name for alias in node.names}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_policy_module_imports_pure_modules_only(source: Path) -> None:
    allowed = PURE | (LOADS_USER_CODE if source.name == "registry.py" else set())
    for module, names in imports(ast.parse(source.read_text(encoding="utf-8"))):
        ours = module.startswith("tinyllm.policy") or module == "tinyllm.errors"
        assert ours or module in allowed, f"{source.name} imports {module}"
        if module == "random":
            assert names == {"Random"}, "the module's own functions share one hidden state"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_policy_module_calls_nothing_that_depends_on_the_process_or_the_outside(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & FORBIDDEN_CALLS
