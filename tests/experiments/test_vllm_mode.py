"""`replay --mode vllm` up to its child process, whose place a script takes; what vLLM does is in tests/bridge."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="--mode vllm makes its prompts with the engine extra")

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.bridge.job import ReplayJob
from tinyllm.errors import IncompleteRunError, InputError

CHILD = """#!{python}
import json, sys
job = sys.argv[3]
def say(**facts):
    print(json.dumps(facts), flush=True)
{body}
"""
READY = 'say(ready="0.32.0")\nassert sys.stdin.readline() == "go\\n"\n'
STALLED = 'say(done=True, now=7, num_steps=1, unfinished=["r3"])\n'
"""What ends a run without a log."""


@pytest.fixture
def make(tmp_path: Path, make_trace: Callable[..., Path], tiny_llama: Any) -> Callable[..., ReplayOptions]:
    """`make("say(ready=1)", policy="srpt")`: a replay whose child runs this code."""

    def options(body: str = READY, **changes: Any) -> ReplayOptions:
        child = tmp_path / "python"
        child.write_text(CHILD.format(python=sys.executable, body=body))
        child.chmod(0o755)
        given = {
            "model": tiny_llama.directory,
            "length_scale": 0.05,
            "requests": 5,
            "num_gpu_blocks": 8,
            "mode": "vllm",
            "vllm_python": child,
        }
        return ReplayOptions(trace=make_trace(20), out=tmp_path / "run", **{**given, **changes})

    return options


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": None}, "--mode vllm needs --model DIR"),
        ({"vllm_python": Path("nowhere")}, "--mode vllm: no nowhere; run `make peer-vllm`"),
        ({"block_size": 16}, "--block-size 16: vLLM's attention on a CPU takes multiples of 32"),
        ({"admission": "full-prompt"}, "--admission full-prompt: choose first-chunk or prompt-fits"),
        ({"batching": "static"}, "--mode vllm has no --batching: leave it out"),
        ({"max_queued_requests": 3}, "--mode vllm has no --max-queued-requests: leave it out"),
        ({"register_blocks": "computed"}, "--mode vllm keeps to its own --register-blocks: leave it out"),
        (
            {"max_model_len": 200, "num_gpu_blocks": 6},
            "--max-model-len 200 does not fit the pool of 192 tokens",
        ),
        ({"device": "cuda"}, "--mode vllm: --device cuda is not supported, only cpu"),
        ({"refresh_predictions": 4, "predictor": "perfect"}, "--mode vllm does not refresh predictions"),
        ({"policy": "tests_overtaking:Overtakes"}, "tinyllm.bridge: Overtakes overtakes"),
    ],
)
def test_what_vllm_does_not_have_is_refused_before_anything_is_written(
    changes: dict[str, Any],
    says: str,
    make: Callable[..., ReplayOptions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tests_overtaking.py").write_text(
        "from tinyllm.policy import SchedulingPolicy\n"
        "class Overtakes(SchedulingPolicy):\n    overtake = True\n    def key(self, view, now): return (0,)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = make(**changes)
    with pytest.raises(InputError) as error:
        replay(options)
    assert says in str(error.value)
    assert not options.out.exists()


def test_vllms_own_rules_are_what_the_run_is_configured_to(make: Callable[..., ReplayOptions]) -> None:
    options = make(READY + STALLED)
    with pytest.raises(IncompleteRunError):
        replay(options)
    manifest = json.loads((options.out / "manifest.json").read_text())
    rules = {"admission": "prompt-fits", "cap_lone_prefill": False, "register_blocks": "scheduled"}
    assert {name: manifest["config"][name] for name in rules} == rules
    assert (manifest["mode"], manifest["config"]["block_size"], manifest["config"]["max_model_len"]) == (
        "vllm",
        32,
        256,
    )


def test_the_child_is_told_the_requests_with_prompts_of_their_length(
    make: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    copied = tmp_path / "job"
    options = make(
        f"import shutil; shutil.copy(job, {str(copied)!r})\n" + READY + STALLED,
        policy="sjf",
        policy_args={"decode_weight": 3},
    )
    with pytest.raises(IncompleteRunError):
        replay(options)
    job = ReplayJob.read(copied)
    assert (job.policy, job.policy_args, job.ignore_eos) == ("sjf", {"decode_weight": 3}, True)
    records = [due.record for due in job.clients.take(10**18)]
    assert len(records) == 5
    assert [len(job.prompts[r.request_id]) for r in records] == [r.prompt_tokens for r in records]


def test_an_option_that_the_child_refuses_is_an_input_error_and_no_run(
    make: Callable[..., ReplayOptions],
) -> None:
    options = make('say(error="vLLM 0.31.0 is not supported")')
    with pytest.raises(InputError, match=r"vLLM 0\.31\.0 is not supported"):
        replay(options)
    assert not options.out.exists()


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ('sys.exit("out of memory")', "its process ended with exit code 1: out of memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its process was killed by signal 9"),
    ],
)
def test_a_child_that_dies_leaves_a_run_that_says_interrupted(
    end: str, says: str, make: Callable[..., ReplayOptions]
) -> None:
    options = make(READY + "say(now=7, ended=1)\n" + end)
    with pytest.raises(IncompleteRunError, match=says):
        replay(options)
    assert json.loads((options.out / "manifest.json").read_text())["status"] == "interrupted"


def test_requests_that_the_child_could_not_go_on_with_make_a_stalled_run(
    make: Callable[..., ReplayOptions],
) -> None:
    options = make(READY + STALLED)
    with pytest.raises(IncompleteRunError, match="stalled with nothing left to come; r3 "):
        replay(options)
    assert json.loads((options.out / "manifest.json").read_text())["status"] == "stalled"
