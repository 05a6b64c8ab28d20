"""GPUs by name: data-sheet peaks and the efficiencies that were fitted on measured kernels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from sim.spec import require_positive
from tinyllm.errors import InputError

_GIB: Final = 1024**3


@dataclass(frozen=True)
class GPU:
    """One GPU as the roofline sees it. Symbols are those of docs/cost-models.md, which has the sources.

    Attributes:
        flops: P, dense bf16/fp16 tensor-core FLOP/s.
        flops_fp32: P in float32 without TF32, FLOP/s (no efficiency was fitted for float32).
        bandwidth: W, bytes/s of device memory.
        memory_bytes: memory that the CUDA runtime reports, under the nominal size.
        gemm_compute_efficiency, gemm_memory_efficiency: ec and em.
        gemm_constant_s: cg, seconds a GEMM.
        decode_constant_s, decode_seq_s: d0 and d1, seconds a layer, and a layer and sequence at 32 heads.
        decode_efficiency: ed.
        prefill_constant_s: p0, seconds a layer.
        prefill_compute_efficiency, prefill_memory_efficiency: ep and ew.
        link_bandwidth: NVLink bytes/s of a GPU in one direction.
        allreduce_efficiency, allreduce_latency_s: share of the link that the ring reaches, seconds a call.
        pcie_bandwidth: bytes/s between device and host in one direction, the link's own peak.
        pcie_copy_s: seconds that starting one copy takes. An assumption: nothing here was fitted on copies.
    """

    name: str
    flops: float
    flops_fp32: float
    bandwidth: float
    memory_bytes: int
    gemm_compute_efficiency: float
    gemm_memory_efficiency: float
    gemm_constant_s: float
    decode_constant_s: float
    decode_seq_s: float
    decode_efficiency: float
    prefill_constant_s: float
    prefill_compute_efficiency: float
    prefill_memory_efficiency: float
    link_bandwidth: float
    allreduce_efficiency: float
    allreduce_latency_s: float
    pcie_bandwidth: float = 63.0e9
    pcie_copy_s: float = 2e-6

    def __post_init__(self) -> None:
        require_positive(self, *(field.name for field in fields(self) if field.name != "name"))


GPUS: Final[dict[str, GPU]] = {
    gpu.name: gpu
    for gpu in (
        GPU(
            name="h100",
            flops=989e12,
            flops_fp32=67e12,
            bandwidth=3.35e12,
            memory_bytes=int(79.11 * _GIB),
            gemm_compute_efficiency=0.798,
            gemm_memory_efficiency=0.849,
            gemm_constant_s=3.9e-6,
            decode_constant_s=11.0e-6,
            decode_seq_s=0.183e-6,
            decode_efficiency=0.93,
            prefill_constant_s=13.3e-6,
            prefill_compute_efficiency=0.71,
            prefill_memory_efficiency=0.43,
            link_bandwidth=450e9,
            allreduce_efficiency=0.652,
            allreduce_latency_s=4.77e-6,
        ),
        GPU(
            name="h200",
            flops=989e12,
            flops_fp32=67e12,
            bandwidth=4.80e12,
            memory_bytes=int(139.80 * _GIB),
            gemm_compute_efficiency=0.793,
            gemm_memory_efficiency=0.819,
            gemm_constant_s=4.2e-6,
            decode_constant_s=11.1e-6,
            decode_seq_s=0.186e-6,
            decode_efficiency=0.90,
            prefill_constant_s=13.3e-6,
            prefill_compute_efficiency=0.69,
            prefill_memory_efficiency=0.32,
            link_bandwidth=450e9,
            allreduce_efficiency=0.676,
            allreduce_latency_s=4.76e-6,
        ),
        GPU(
            name="a100",
            flops=312e12,
            flops_fp32=19.5e12,
            bandwidth=2.039e12,
            memory_bytes=int(79.14 * _GIB),
            gemm_compute_efficiency=0.751,
            gemm_memory_efficiency=0.706,
            gemm_constant_s=6.5e-6,
            decode_constant_s=16.9e-6,
            decode_seq_s=0.245e-6,
            decode_efficiency=0.81,
            prefill_constant_s=15.2e-6,
            prefill_compute_efficiency=0.62,
            prefill_memory_efficiency=0.33,
            link_bandwidth=300e9,
            allreduce_efficiency=0.604,
            allreduce_latency_s=5.46e-6,
            pcie_bandwidth=31.5e9,
        ),
    )
}
"""SXM parts; a100 is the 80 GB one."""


def gpu_by_name(name: str) -> GPU:
    """Raises InputError, listing the names, for an unknown one."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise InputError(f"unknown GPU {name!r}; known ones are {', '.join(GPUS)}") from None
