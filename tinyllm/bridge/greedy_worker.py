"""A vLLM engine behind two pipes: a JSON request a line in, a JSON answer a line out.

Run by the Python of an environment that has vLLM, by path: nothing of tinyllm needs to be there. A request
is `{"prompt": [token ids], "max_tokens": n, "eos": [token ids]}`, its answer `{"token_ids": […], "margins": […]}`,
the margins being those between the two likeliest tokens. The first line out, `{"ready": version}`, says that the
model is loaded.
"""

from __future__ import annotations

import json
import os
import sys


def main(model: str, dtype: str) -> None:
    """Serve requests until standard input ends."""
    # vLLM and its children print to standard output, which belongs to the answers here.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import vllm

    llm = vllm.LLM(model, dtype=dtype, enforce_eager=True, enable_prefix_caching=False, seed=0)
    print(json.dumps({"ready": vllm.__version__}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=request["max_tokens"],
            stop_token_ids=request["eos"],
            logprobs=2,
        )
        prompt = {"prompt_token_ids": request["prompt"]}
        output = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0]
        print(json.dumps({"token_ids": list(output.token_ids), "margins": _margins(output)}), file=answers)


def _margins(output) -> list[float]:  # type: ignore[no-untyped-def]  # a type of vLLM's
    margins = []
    for token in output.logprobs:
        best, second = sorted((entry.logprob for entry in token.values()), reverse=True)[:2]
        margins.append(best - second)
    return margins


if __name__ == "__main__":
    main(*sys.argv[1:])
