"""What both engines of Hugging Face Transformers share: the model, and a generation configuration of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from experiments.bench.engines.base import EngineInfo, checked_context, eos_token_ids
from experiments.bench.engines.options import EngineOptions
from tinyllm.errors import InputError

MODULES: Final = ("torch", "transformers.generation.utils", "transformers.models.auto.modeling_auto")
"""What Transformers imports once a model is loaded, anyway."""


class TransformersModel:
    """`AutoModelForCausalLM` on the CPU.

    Attributes:
        model: in evaluation mode.
        max_model_len: tokens of prompt and output at most.
        eos_token_ids: any of them ends an output.

    Raises:
        InputError: an option is wrong, or Transformers does not load the directory.
    """

    def __init__(self, model: Path, options: EngineOptions) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        dtype = getattr(torch, options.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise InputError(f"engine option dtype {options.dtype}: give float32 or bfloat16")
        attention = options.attention or "sdpa"
        try:
            loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=attention)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{model}: Transformers does not load it: {str(error).partition(chr(10))[0]}"
            ) from None
        self.model: Any = loaded.eval()
        self.max_model_len = checked_context(options, loaded.config.max_position_embeddings)
        self.eos_token_ids = eos_token_ids(model)
        self._dtype = options.dtype
        # The checkpoint's may sample, penalize repetition, or stop where no stop is asked for.
        self.model.generation_config = self.generation_config()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters, shared ones once."""
        return sum(each.numel() * each.element_size() for each in self.model.parameters())

    def generation_config(self, **settings: Any) -> Any:
        """A greedy one without a stop."""
        from transformers import GenerationConfig

        given = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0} | settings
        return GenerationConfig(**given)

    def info(self, **settings: Any) -> EngineInfo:
        """What a report has to say of the engine; `settings` are those that it has of its own."""
        import torch
        import transformers

        attention = self.model.config._attn_implementation
        return EngineInfo(
            version=transformers.__version__,
            dtype=self._dtype,
            threads=torch.get_num_threads(),
            max_model_len=self.max_model_len,
            settings={"torch": torch.__version__, "attention": attention, **settings},
        )
