"""The least time that a model needs on a machine: its arithmetic and its memory reads at the measured ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.bench.jobs import BenchRequest
from sim.shapes import ModelShape


@dataclass(frozen=True)
class Ceilings:
    """What a machine can do, measured.

    Attributes:
        flops: float32 operations of a matrix product, a second.
        bytes: read from memory, a second.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class Floor:
    """The floor of one model in one dtype, from its shape.

    Attributes:
        token_flops: of all layers' products, for one token.
        head_flops: of the output head, for one sampled token.
        pair_flops: of attention, for one token that looks at one.
        step_bytes: weights that each step reads, the head's included.
        kv_bytes: keys and values of one token.
    """

    token_flops: float
    head_flops: float
    pair_flops: float
    step_bytes: float
    kv_bytes: float

    @classmethod
    def of(cls, shape: ModelShape, dtype: str) -> Floor:
        """That of a model's shape."""
        tables = shape.vocab_size * (1 if shape.tie_word_embeddings else 2)
        positions = shape.max_position_embeddings if shape.learned_positions else 0
        layers = shape.num_parameters - (tables + positions) * shape.hidden_size
        head = shape.vocab_size * shape.hidden_size
        return cls(
            token_flops=2.0 * layers,
            head_flops=2.0 * head,
            pair_flops=4.0 * shape.num_layers * shape.num_heads * shape.head_dim,
            step_bytes=(layers + head) * shape.weight_bytes(dtype) / shape.num_parameters,
            kv_bytes=shape.kv_bytes_per_token(dtype),
        )

    def seconds(self, requests: Sequence[BenchRequest], ceilings: Ceilings) -> float:
        """The least time for requests that are all there at once and run in one batch.

        One step computes all prompts and samples the first tokens; each further step computes one token of every
        request that goes on. A step takes its operations or its reads, whichever is longer: nothing else, and both
        at once.
        """
        prompts = [len(request.prompt_token_ids) for request in requests]
        outputs = [request.max_tokens for request in requests]
        flops = self.token_flops * sum(prompts) + self.head_flops * len(prompts)
        flops += self.pair_flops * sum(length * (length + 1) // 2 for length in prompts)
        total = self._step(flops, self.step_bytes, ceilings)
        for step in range(1, max(outputs)):
            contexts = [
                prompt + step for prompt, output in zip(prompts, outputs, strict=True) if output > step
            ]
            flops = (self.token_flops + self.head_flops) * len(contexts) + self.pair_flops * sum(contexts)
            total += self._step(flops, self.step_bytes + self.kv_bytes * sum(contexts), ceilings)
        return total

    @staticmethod
    def _step(flops: float, num_bytes: float, ceilings: Ceilings) -> float:
        return max(flops / ceilings.flops, num_bytes / ceilings.bytes)
