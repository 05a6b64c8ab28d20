"""Hugging Face Transformers, by its own `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from experiments.backends.base import Backend, GreedyOutput


class TransformersBackend(Backend):
    """`AutoModelForCausalLM.generate`, one prompt at a time, so that no padding takes part."""

    def __init__(self, model: Path, *, device: str, dtype: str) -> None:
        logging.disable_progress_bar()
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model = loaded.to(device).eval()

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_token_ids: Sequence[int]) -> GreedyOutput:
        # A configuration of our own: the checkpoint's may sample, or penalize repetition.
        config = GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=list(eos_token_ids) or None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        input_ids = torch.tensor([prompt], device=self._model.device)
        with torch.inference_mode():
            result = self._model.generate(
                input_ids, attention_mask=torch.ones_like(input_ids), generation_config=config
            )
        largest = torch.cat(result.logits).float().topk(2, dim=-1).values
        margins = (largest[:, 0] - largest[:, 1]).tolist()
        return GreedyOutput(result.sequences[0, len(prompt) :].tolist(), margins)
