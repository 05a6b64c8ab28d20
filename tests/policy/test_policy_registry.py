from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tinyllm.errors import InputError
from tinyllm.policy import POLICIES, SchedulingPolicy, make_policy

MINE = """
from tinyllm.policy import SchedulingPolicy


class Mine(SchedulingPolicy):
    def __init__(self, weight: float, label: str = "x") -> None:
        self.weight = weight

    def key(self, view, now):
        return (view.num_prompt_tokens * self.weight,)


class Open(Mine):
    def __init__(self, **anything):
        super().__init__(1.0)
        self.anything = anything


class Keyless(SchedulingPolicy):
    pass


class Other:
    pass


number = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of a user's policies; imports of the test are forgotten after it."""
    (tmp_path / "my_policies.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "needs.py").write_text("import surely_not_installed\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    for name in ("my_policies", "broken", "needs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in ("my_policies", "broken", "needs"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_built_in_policy_is_made_by_its_name_and_anew_each_time(name: str) -> None:
    first, second = make_policy(name), make_policy(name)
    assert type(first) is POLICIES[name]
    assert first is not second


def test_arguments_reach_the_constructor() -> None:
    policy = make_policy("vtc", {"output_weight": 5})
    assert (policy.input_weight, policy.output_weight) == (1, 5)
    assert make_policy("priority", {"preemptive": False}).preemptive is False


def test_a_class_of_a_module_in_the_current_folder_is_found(folder: Path) -> None:
    policy = make_policy("my_policies:Mine", {"weight": 2})
    assert isinstance(policy, SchedulingPolicy)
    assert policy.weight == 2
    assert make_policy("my_policies:Open", {"whatever": "x"}).anything == {"whatever": "x"}


@pytest.mark.parametrize(
    ("name", "args", "complaint"),
    [
        (
            "lifo",
            {},
            f"unknown; choose {', '.join(POLICIES)}, or module:Class",
        ),
        ("no_such_module:Mine", {}, "no module 'no_such_module' in this folder or on PYTHONPATH"),
        ("no.such.module:Mine", {}, "no module 'no' in this folder"),
        ("needs:Mine", {}, "needs imports 'surely_not_installed', which is missing"),
        ("broken:Mine", {}, "importing broken failed: SyntaxError"),
        ("my_policies:Nobody", {}, "has no class 'Nobody'"),
        ("my_policies:", {}, "has no class ''"),
        ("my_policies:Other", {}, "has no class 'Other' that extends SchedulingPolicy"),
        ("my_policies:number", {}, "has no class 'number'"),
        ("my_policies:Keyless", {}, "has no `key` method"),
        (":Mine", {}, "importing"),
        ("my_policies:Mine", {}, "missing a required argument: 'weight'"),
        ("my_policies:Mine", {"weight": 1, "wait": 2}, "unexpected keyword argument 'wait'"),
        ("my_policies:Mine", {"weight": "heavy"}, "weight=heavy: my_policies:Mine takes a number"),
        ("fcfs", {"preemptive": True}, "unexpected keyword argument 'preemptive'"),
        ("priority", {"preemptive": "maybe"}, "preemptive=maybe: priority takes true or false"),
        ("srpt", {"decode_weight": 1.5}, "decode_weight=1.5: srpt takes a whole number"),
        ("srpt", {"decode_weight": True}, "takes a whole number"),
    ],
)
def test_a_wrong_policy_or_argument_is_one_line(
    folder: Path, name: str, args: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InputError) as error:
        make_policy(name, args)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("--policy")
