"""Seconds of each part of a forward pass on one GPU of a tensor parallel group: the roofline's terms."""

from __future__ import annotations

from dataclasses import dataclass

from sim.hardware import GPU
from sim.shapes import ModelShape


@dataclass(frozen=True)
class Gemm:
    """[m, k] x [k, n] = max(2mnk/(P·ec), bytes·(mk + kn + mn)/(W·em)) + cg seconds."""

    k: int
    n: int
    flop_rate: float
    byte_rate: float
    constant_s: float
    element_bytes: int

    def seconds(self, m: int) -> float:
        compute = 2 * m * self.n * self.k / self.flop_rate
        memory = self.element_bytes * (m * self.k + self.k * self.n + m * self.n) / self.byte_rate
        return max(compute, memory) + self.constant_s


class Kernels:
    """The terms of docs/cost-models.md with everything but the step's sums worked out beforehand.

    All methods return seconds over all layers and expect at least one row.
    """

    def __init__(self, gpu: GPU, shape: ModelShape, element_bytes: int, tp: int, block_size: int) -> None:
        self._layers = shape.num_layers
        heads, kv_heads = shape.num_heads // tp, shape.kv_heads_per_gpu(tp)
        flops = gpu.flops_fp32 if element_bytes == 4 else gpu.flops
        self._gemms, self._lm_head = _gemms(gpu, shape, element_bytes, tp, flops)
        self._set_decode(gpu, heads, 2 * kv_heads * shape.head_dim * element_bytes)
        self._set_prefill(gpu, flops, heads * shape.head_dim, kv_heads * shape.head_dim, element_bytes)
        self._set_allreduce(gpu, shape.hidden_size * element_bytes, tp)
        layer_bytes = 2 * kv_heads * shape.head_dim * element_bytes * block_size
        self._swap_per_block = self._layers * (gpu.pcie_copy_s + layer_bytes / gpu.pcie_bandwidth)

    def _set_decode(self, gpu: GPU, heads: int, kv_bytes: int) -> None:
        self._decode_constant = self._layers * gpu.decode_constant_s
        self._decode_per_seq = self._layers * gpu.decode_seq_s * heads / 32
        self._decode_per_context = self._layers * kv_bytes / (gpu.bandwidth * gpu.decode_efficiency)

    def _set_prefill(self, gpu: GPU, flops: float, q_width: int, kv_width: int, element_bytes: int) -> None:
        byte_cost = self._layers * element_bytes / (gpu.bandwidth * gpu.prefill_memory_efficiency)
        self._prefill_constant = self._layers * gpu.prefill_constant_s
        self._prefill_per_pair = self._layers * 4 * q_width / (flops * gpu.prefill_compute_efficiency)
        self._prefill_per_context = 2 * kv_width * byte_cost
        self._prefill_per_token = 2 * q_width * byte_cost

    def _set_allreduce(self, gpu: GPU, row_bytes: int, tp: int) -> None:
        # Two a layer, after the o and the down projection; none on a single GPU.
        calls = 2 * self._layers if tp > 1 else 0
        ring = 2 * (tp - 1) / tp * row_bytes / (gpu.link_bandwidth * gpu.allreduce_efficiency)
        self._allreduce_constant = calls * gpu.allreduce_latency_s
        self._allreduce_per_token = calls * ring

    def gemms(self, num_tokens: int) -> float:
        """qkv, o, gate-up and down of every layer."""
        return self._layers * sum(gemm.seconds(num_tokens) for gemm in self._gemms)

    def lm_head(self, num_sampled: int) -> float:
        return self._lm_head.seconds(num_sampled)

    def allreduces(self, num_tokens: int) -> float:
        return self._allreduce_constant + self._allreduce_per_token * num_tokens

    def swap(self, num_blocks: int) -> float:
        """Copies of whole blocks between device and host in one direction, one a block and layer."""
        return self._swap_per_block * num_blocks

    def decode_attention(self, num_seqs: int, context_tokens: int) -> float:
        return (
            self._decode_constant
            + self._decode_per_seq * num_seqs
            + self._decode_per_context * context_tokens
        )

    def prefill_attention(self, tokens: int, pairs: int, context_tokens: int) -> float:
        return (
            self._prefill_constant
            + self._prefill_per_pair * pairs
            + self._prefill_per_context * context_tokens
            + self._prefill_per_token * tokens
        )


def _gemms(
    gpu: GPU, shape: ModelShape, element_bytes: int, tp: int, flops: float
) -> tuple[tuple[Gemm, ...], Gemm]:
    def gemm(k: int, n: int) -> Gemm:
        return Gemm(
            k,
            n,
            flops * gpu.gemm_compute_efficiency,
            gpu.bandwidth * gpu.gemm_memory_efficiency,
            gpu.gemm_constant_s,
            element_bytes,
        )

    q_width = shape.num_heads // tp * shape.head_dim
    kv_width = shape.kv_heads_per_gpu(tp) * shape.head_dim
    mlp_width = shape.intermediate_size // tp
    hidden = shape.hidden_size
    layer = (
        gemm(hidden, q_width + 2 * kv_width),
        gemm(q_width, hidden),
        gemm(hidden, (2 if shape.gated_mlp else 1) * mlp_width),
        gemm(mlp_width, hidden),
    )
    return layer, gemm(hidden, -(-shape.vocab_size // tp))
