"""Random worlds that vLLM's configuration allows."""

from __future__ import annotations

from random import Random
from typing import Final

from tinyllm.conformance.world import World

_KEPT: Final = (
    "block_size",
    "num_gpu_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "watermark",
    "max_model_len",
)
"""Options that both schedulers have; what a world has beyond them is left at its default."""


def draw_world(rng: Random, prefix_caching: bool) -> World:
    """A world of the conformance kit, with the options that vLLM refuses mended; `VLLM_RULES` are not in it."""
    world = World.draw(rng)
    drawn = {name: world.config[name] for name in _KEPT}
    config = drawn | {
        "enable_prefix_caching": prefix_caching,
        "admission": "first-chunk" if world.config["admission"] == "first-chunk" else "prompt-fits",
    }
    budget = config["max_num_batched_tokens"]
    # vLLM wants a budget of at least a token for each seat,
    config["max_num_seqs"] = min(config["max_num_seqs"], budget)
    if not config["enable_chunked_prefill"]:
        # and one of the whole context where prompts can't be cut. Its threshold would cut them nevertheless.
        config["max_model_len"] = max(2, min(config["max_model_len"] or budget, budget))
        config["max_num_batched_tokens"] = max(2, budget)
        config["long_prefill_token_threshold"] = 0
    return world._replace(config=config)
