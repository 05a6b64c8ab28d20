from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError
from tinyllm.policy.request import Request
from tinyllm.runner.attention import BACKENDS, get_backend, sdpa
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.kv_cache import KVCache
from tinyllm.runner.request import RunnerRequest

HEAD_DIM = 16  # the CPU kernels' least


@dataclass
class Shape:
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None

    def sliding_window_of(self, layer: int) -> int | None:
        return self.window if layer % 2 == 0 else None


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    num_kv_heads = draw(st.sampled_from([1, 2, 3]))
    group = draw(st.sampled_from([1, 2]))
    window = draw(st.none() | st.integers(1, 12))
    head_dim = draw(st.sampled_from([HEAD_DIM, 48, 12]))
    return Shape(2, num_kv_heads * group, num_kv_heads, head_dim, window)


chunks = st.lists(st.integers(1, 9) | st.just(1) | st.integers(30, 50), min_size=1, max_size=4)
"""One request: the tokens that it computes in each step, the last step first to come in a batch."""


class Sequences:
    """Requests with random keys and values, in random blocks of a cache that was full of NaN."""

    def __init__(
        self, shape: Shape, all_chunks: list[list[int]], block_size: int, seed: int, device: torch.device
    ):
        self.shape, self.block_size, self.device = shape, block_size, device
        self.generator = torch.Generator().manual_seed(seed)
        lengths = [sum(c) for c in all_chunks]
        num_blocks = sum(-(-n // block_size) for n in lengths) + 1
        self.cache = KVCache(shape, num_blocks, block_size, device, torch.float32)
        self.cache.k.fill_(torch.nan)
        self.cache.v.fill_(torch.nan)
        self.q, self.k, self.v = (
            [self._random(n, heads) for n in lengths]
            for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        )
        free = torch.randperm(num_blocks, generator=self.generator).tolist()
        self.requests = [Request(str(i), n, 1) for i, n in enumerate(lengths)]
        for request in self.requests:
            request.block_ids = [free.pop() for _ in range(-(-request.num_tokens // block_size))]
        self.tokens = {
            r.request_id: RunnerRequest([0] * r.num_tokens, SamplingParams(), 0) for r in self.requests
        }

    def _random(self, num_tokens: int, heads: int) -> Tensor:
        size = (self.shape.num_layers, num_tokens, heads, self.shape.head_dim)
        return torch.randn(size, generator=self.generator).to(self.device)

    def step(self, backend: object, scheduled: Callable, rows: list[tuple[int, int]]) -> list[list[Tensor]]:
        """Compute (sequence, tokens) rows; the outputs by row and layer."""
        requests = [self.requests[i] for i, _ in rows]
        batch = scheduled([(r, n) for r, (_, n) in zip(requests, rows, strict=True)])
        flat = FlatBatch.build(batch, self.tokens, self.block_size, self.device)
        attend = backend.prepare(flat)
        spans = [
            (i, slice(self.requests[i].num_computed_tokens, self.requests[i].num_computed_tokens + n))
            for i, n in rows
        ]
        outputs = []
        for layer in range(self.shape.num_layers):
            q, k, v = (torch.cat([x[i][layer, span] for i, span in spans]) for x in (self.q, self.k, self.v))
            outputs.append(attend(layer, q, k, v))
        for request, (_, n) in zip(requests, rows, strict=True):
            request.num_computed_tokens += n
        bounds = list(pairwise(flat.query_start.tolist()))
        return [[out[start:end] for out in outputs] for start, end in bounds]


@pytest.mark.parametrize("name", sorted(BACKENDS))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=shapes(),
    all_chunks=st.lists(chunks, min_size=1, max_size=5),
    block_size=st.sampled_from([16, 32, 48, 1, 3, 8]),
    seed=st.integers(0, 1000),
    max_gathered=st.sampled_from([1, 20, 1 << 16]),
)
def test_every_backend_gives_dense_attention_under_any_mix_of_chunks_and_decodes(
    name: str,
    device: torch.device,
    scheduled: Callable,
    dense_attention: Callable[..., Tensor],
    shape: Shape,
    all_chunks: list[list[int]],
    block_size: int,
    seed: int,
    max_gathered: int,
) -> None:
    sequences = Sequences(shape, all_chunks, block_size, seed, device)
    backend = get_backend(name, device)(sequences.cache, shape)
    left = [list(c) for c in all_chunks]
    outputs: list[list[list[Tensor]]] = [[] for _ in left]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa, "MAX_GATHERED_TOKENS", max_gathered)
        while any(left):
            rows = [(i, c.pop(0)) for i, c in enumerate(left) if c]
            for (i, _), out in zip(rows, sequences.step(backend, scheduled, rows), strict=True):
                outputs[i].append(out)
    for i, steps in enumerate(outputs):
        for layer in range(shape.num_layers):
            q, k, v = (x[i][layer] for x in (sequences.q, sequences.k, sequences.v))
            expected = dense_attention(q, k, v, shape.sliding_window_of(layer))
            found = torch.cat([step[layer] for step in steps])
            torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 5, 300, 600])
@pytest.mark.parametrize("grows", [True, False])
def test_keys_that_are_looked_at_in_parts_are_weighed_as_one_softmax(
    scheduled: Callable, dense_attention: Callable[..., Tensor], window: int | None, grows: bool
) -> None:
    """Scores that grow with the position make each part's largest the new one; those that fall leave the first."""
    shape, device = Shape(1, 3, 1, HEAD_DIM, window), torch.device("cpu")
    sequences = Sequences(shape, [[500, 400]], 16, 0, device)
    growth = torch.linspace(0.1, 12, 900)[:, None, None]
    sequences.k[0][0] *= growth if grows else growth.flip(0)
    backend = get_backend("cpu", device)(sequences.cache, shape)
    steps = [sequences.step(backend, scheduled, [(0, count)])[0][0] for count in (500, 400)]
    expected = dense_attention(*(x[0][0] for x in (sequences.q, sequences.k, sequences.v)), window)
    torch.testing.assert_close(torch.cat(steps).double(), expected, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 5, 300, 600])
@pytest.mark.parametrize("block_size", [16, 48, 512])
@pytest.mark.parametrize("grows", [True, False])
def test_tokens_whose_keys_are_looked_at_in_pieces_see_one_softmax_whatever_others_do(
    scheduled: Callable,
    dense_attention: Callable[..., Tensor],
    window: int | None,
    block_size: int,
    grows: bool,
) -> None:
    shape, device = Shape(1, 6, 3, HEAD_DIM, window), torch.device("cpu")
    lengths = [255, 256, 257, 512, 900, 1]
    sequences = Sequences(shape, [[n, 1] for n in lengths], block_size, 0, device)
    for keys in sequences.k:
        growth = torch.linspace(0.1, 12, keys.shape[1])[:, None, None]
        keys[0] *= growth if grows else growth.flip(0)
    backend = get_backend("cpu", device)(sequences.cache, shape)
    rows = [(i, n) for i, n in enumerate(lengths)]
    sequences.step(backend, scheduled, rows)
    together = [out[0] for out in sequences.step(backend, scheduled, [(i, 1) for i, _ in rows])]
    for i, length in rows:
        expected = dense_attention(*(x[i][0] for x in (sequences.q, sequences.k, sequences.v)), window)
        torch.testing.assert_close(together[i].double(), expected[-1:], atol=5e-5, rtol=1e-5)
        sequences.requests[i].num_computed_tokens = length
        alone = sequences.step(backend, scheduled, [(i, 1)])[0][0]
        assert torch.equal(alone, together[i]), length


def test_nan_in_one_request_does_not_reach_another_one_that_takes_over_its_blocks(
    scheduled: Callable, device: torch.device
) -> None:
    shape = Shape(1, 2, 1, HEAD_DIM, None)
    for name in BACKENDS:
        sequences = Sequences(shape, [[1], [5]], 16, 0, device)
        sequences.k[1][:], sequences.v[1][:] = torch.nan, torch.nan
        good, bad = sequences.step(
            get_backend(name, device)(sequences.cache, shape), scheduled, [(0, 1), (1, 5)]
        )
        assert good[0].isfinite().all(), name
        assert bad[0].isnan().all(), name


def test_auto_is_the_fastest_backend_of_the_device() -> None:
    assert get_backend("auto", torch.device("cpu")) is get_backend("cpu", torch.device("cpu"))
    assert get_backend("auto", torch.device("cuda")) is sdpa.SDPAAttention


def test_an_unknown_backend_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(InputError, match="flash: no such backend; choose auto, cpu, reference, sdpa"):
        get_backend("flash", torch.device("cpu"))


def test_without_numba_the_cpu_backend_falls_back_to_torch(
    monkeypatch: pytest.MonkeyPatch, scheduled: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    from tinyllm.runner.attention import cpu

    monkeypatch.setattr(cpu, "panel_cache", None)
    shape = Shape(1, 2, 1, HEAD_DIM, None)
    found = []
    for name in ("cpu", "reference"):
        sequences = Sequences(shape, [[3, 1]], 16, 0, torch.device("cpu"))
        backend = get_backend(name, torch.device("cpu"))(sequences.cache, shape)
        sequences.step(backend, scheduled, [(0, 3)])
        found.append(sequences.step(backend, scheduled, [(0, 1)])[0][0])
    torch.testing.assert_close(*found)
    assert "numba" in caplog.text


def test_bfloat16_agrees_with_float32_to_its_precision(scheduled: Callable, device: torch.device) -> None:
    shape = Shape(1, 4, 2, HEAD_DIM, None)
    for name in BACKENDS:
        sequences = Sequences(shape, [[6, 1, 1], [3, 4, 1]], 4, 0, device)
        exact = get_backend("reference", device)(sequences.cache, shape)
        expected = sequences.step(exact, scheduled, [(0, 6), (1, 3)]) + sequences.step(
            exact, scheduled, [(0, 1), (1, 4)]
        )
        rounded = Sequences(shape, [[6, 1, 1], [3, 4, 1]], 4, 0, device)
        rounded.cache = KVCache(shape, rounded.cache.num_blocks, 4, device, torch.bfloat16)
        rounded.q, rounded.k, rounded.v = (
            [x.bfloat16() for x in xs] for xs in (rounded.q, rounded.k, rounded.v)
        )
        backend = get_backend(name, device)(rounded.cache, shape)
        found = rounded.step(backend, scheduled, [(0, 6), (1, 3)]) + rounded.step(
            backend, scheduled, [(0, 1), (1, 4)]
        )
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a[0].float(), b[0], atol=0.05, rtol=0.02)
            assert np.isfinite(a[0].float().cpu().numpy()).all()
