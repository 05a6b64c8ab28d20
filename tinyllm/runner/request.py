"""What the runner keeps of a request: its token ids, and how to sample the next one. No KV, no progress."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinyllm.engine.sampling_params import SamplingParams


class RunnerRequest:
    """Token ids of one request, prompt first, then what was sampled for it.

    A preempted request is recomputed from these alone; how far it is computed, and into which
    blocks, comes with every scheduled batch.

    Attributes:
        params: its sampling parameters.
        seed: 64 bits that, with the index of an output token, fix the noise of that token.
        num_prompt_tokens, num_tokens: `num_tokens` counts prompt and output.
    """

    __slots__ = ("_buffer", "num_prompt_tokens", "num_tokens", "params", "seed")

    def __init__(self, token_ids: Sequence[int], params: SamplingParams, seed: int) -> None:
        self._buffer: NDArray[np.int64] = np.array(token_ids, dtype=np.int64)
        self.num_prompt_tokens = self.num_tokens = len(token_ids)
        self.params = params
        self.seed = seed

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """All token ids so far, int64 [num_tokens]; a view, valid until the next `append`."""
        return self._buffer[: self.num_tokens]

    @property
    def output_token_ids(self) -> NDArray[np.int64]:
        """The sampled token ids, int64 [num_output_tokens]; a view, valid until the next `append`."""
        return self._buffer[self.num_prompt_tokens : self.num_tokens]

    def append(self, token_id: int) -> None:
        if self.num_tokens == len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * self.num_tokens)
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1
