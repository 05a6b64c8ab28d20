"""What every engine of a benchmark can be told: one name for an option, whatever the engine calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from tinyllm.errors import InputError

_TEXTS: Final = ("dtype", "attention", "vllm_python")


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine; None leaves it at what the engine does by itself.

    Attributes:
        dtype: of weights and KV cache.
        threads: of the matrix products; by itself torch takes as many as there are physical cores.
        max_model_len: tokens of prompt and output at most; by itself the model's context.
        max_num_seqs: requests in a step at most; of static batching, in a batch.
        max_num_batched_tokens: token budget of a step; static batching has none.
        num_gpu_blocks, block_size: the KV pool, `num_gpu_blocks * block_size` tokens. Engines of larger blocks take
            as many tokens and a block a sequence more, since its last one is filled in part. Static batching has none.
        attention: name of the implementation.
        kvcache_space: GiB of vLLM's KV pool (`VLLM_CPU_KVCACHE_SPACE`) where `num_gpu_blocks` is not given.
        vllm_python: the Python that has vLLM.

    Raises:
        InputError: a value is of a wrong type or out of range.
    """

    dtype: str = "float32"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int = 16
    attention: str | None = None
    kvcache_space: int = 4
    vllm_python: str | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None and option.default is None:
                continue
            if option.name in _TEXTS:
                right, mend = isinstance(value, str), "give a name"
            else:
                right = isinstance(value, int) and not isinstance(value, bool) and value >= 1
                mend = "give a whole number of at least 1"
            if not right:
                raise InputError(f"engine option {option.name} {value!r}: {mend}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> EngineOptions:
        """Check options by name.

        Raises:
            InputError: one is unknown, or its value wrong.
        """
        known = [option.name for option in fields(cls)]
        if unknown := sorted(given.keys() - set(known)):
            raise InputError(f"engine option {unknown[0]}: unknown; choose from {', '.join(known)}")
        return cls(**given)

    @classmethod
    def from_json(cls, text: str) -> EngineOptions:
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InputError(f"--options: not JSON ({error}); give an object such as {{}}") from None
        if not isinstance(given, dict):
            raise InputError(f"--options {text}: give an object such as {{}}")
        return cls.of(given)

    def to_json(self) -> str:
        return json.dumps(self.given())

    def given(self) -> dict[str, Any]:
        """The options that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def num_pages(self, page_size: int, num_seqs: int) -> int | None:
        """Blocks of another size that hold as many tokens, for so many sequences at once; None: not given."""
        if self.num_gpu_blocks is None:
            return None
        return -(-self.num_gpu_blocks * self.block_size // page_size) + num_seqs
