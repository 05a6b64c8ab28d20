"""vLLM reads KV that it never computed: `python -m tinyllm.bridge.taken_back MODEL`, in an environment that has vLLM.

Under `--scheduling-policy priority` a step may preempt a request that it has already scheduled. The blocks of the chunk
that is taken back are in the prefix cache by then, and stay there; resumed, the request hits them. Here `low` has 272
prompt tokens, of which 224 are computed when `high` takes its blocks; it resumes with 256 of them "cached". The exit
code is 1 if its greedy output then differs from the one that it has alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from tinyllm.bridge.versions import check_version
from tinyllm.errors import InputError

LOW: Final = [(37 * i * i + 11 * i) % 4000 + 200 for i in range(272)]
HIGH: Final = [(91 * i + 7) % 3000 + 300 for i in range(64)]
STALE: Final = [(53 * i + 5) % 3000 + 500 for i in range(340)]
"""What the blocks held before, so that they are not zeros."""


class Engine:
    """vLLM on a pool of 11 blocks of 32 tokens, in this process."""

    def __init__(self, model: str) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = EngineArgs(
            model=model,
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            scheduling_policy="priority",
            enable_prefix_caching=True,
            scheduler_reserve_full_isl=False,
            max_model_len=352,
            block_size=32,
            num_gpu_blocks_override=12,
            max_num_seqs=2,
            max_num_batched_tokens=128,
            long_prefill_token_threshold=48,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine: Any = LLMEngine.from_engine_args(arguments)

    def add(self, name: str, prompt: Sequence[int], priority: int, max_tokens: int) -> None:
        """Let a request wait."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params, priority=priority)

    def step(self) -> list[Any]:
        """One step; what ended with it."""
        return [output for output in self._engine.step() if output.finished]

    def drain(self) -> dict[str, list[int]]:
        """Run until all have ended; their output tokens by name."""
        tokens = {}
        while self._engine.has_unfinished_requests():
            for output in self.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        return tokens

    def forget(self) -> None:
        """Fill all blocks with something else, and empty the prefix cache."""
        self.add("stale", STALE, 0, 4)
        self.drain()
        self._engine.reset_prefix_cache()


def main(model: str) -> int:
    """Compare the two outputs; return the exit code."""
    check_version()
    engine = Engine(model)
    engine.forget()
    engine.add("low", LOW, priority=9, max_tokens=10)
    alone = engine.drain()["low"]
    engine.forget()
    engine.add("low", LOW, priority=9, max_tokens=10)
    engine.step()
    engine.add("high", HIGH, priority=0, max_tokens=6)
    taken_back = engine.drain()["low"]
    print(f"alone:       {alone}\nwith 'high': {taken_back}")
    print("the same" if alone == taken_back else "DIFFERENT: it was given KV that nobody computed")
    return int(alone != taken_back)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except InputError as error:
        print(f"taken_back: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
