"""A tiny decoder with random weights, scheduled batches by hand, and attention in its plainest form."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from tinyllm.models.config import ModelConfig
from tinyllm.models.llama import LlamaForCausalLM
from tinyllm.models.rope import RopeConfig
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.request import Request

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., LlamaForCausalLM]:
    """A two-layer LLaMA whose first layer may have a sliding window."""

    def make(
        window: int | None = None, device: str | torch.device = "cpu", seed: int = 0
    ) -> LlamaForCausalLM:
        config = ModelConfig(
            architecture="LlamaForCausalLM",
            vocab_size=61,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=12,
            intermediate_size=48,
            max_position_embeddings=128,
            norm_eps=1e-6,
            hidden_act="silu",
            rope=RopeConfig(10_000.0),
            tie_word_embeddings=False,
            sliding_window=window,
            windowed_layers=(True, False) if window else (),
            eos_token_ids=(2,),
        )
        model = LlamaForCausalLM(config, torch.float32).eval()
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        return model.to(device)

    return make


@pytest.fixture(scope="session")
def scheduled() -> Callable[[Iterable[tuple[Request, int]]], ScheduledBatch]:
    """A batch of (request, tokens to schedule); rows sample where they reach the request's last token."""

    def schedule(rows: Iterable[tuple[Request, int]]) -> ScheduledBatch:
        batch = ScheduledBatch()
        for row, (request, num_tokens) in enumerate(rows):
            batch.requests.append(request)
            batch.num_scheduled_tokens.append(num_tokens)
            batch.num_tokens += num_tokens
            if request.num_computed_tokens + num_tokens < request.num_tokens:
                batch.partial_rows.append(row)
            else:
                batch.num_sampled += 1
        return batch

    return schedule


@pytest.fixture(scope="session")
def dense_attention() -> Callable[..., Tensor]:
    """Attention of one whole sequence, in float64, without pages or batches."""

    def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        group = q.shape[1] // k.shape[1]
        q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        position = torch.arange(len(q), device=q.device)
        distance = position[:, None] - position
        hidden = (distance < 0) | (distance >= (window or len(q)))
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)

    return attend
