"""Swapping as a KV strategy: a victim's blocks go to host memory and come back, instead of being computed anew."""

from __future__ import annotations

from collections.abc import Iterable

from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.kv_manager import KVBlockManager
from tinyllm.policy.request import Request


class SwappingKVManager(KVBlockManager):
    """Keeps a victim's KV in a pool of host blocks until it is admitted again (vLLM's V0 engine, Kwon et al., SOSP
    2023). Where the host pool has no room for all of a victim's blocks, they are lost and computed anew.

    Attributes:
        num_cpu_blocks: size of the host pool.
        num_free_cpu_blocks: of them, unused.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, num_cpu_blocks: int, watermark: float = 0.0
    ) -> None:
        super().__init__(num_blocks, block_size, watermark=watermark)
        self.num_cpu_blocks = self.num_free_cpu_blocks = num_cpu_blocks

    def preempt(self, request: Request) -> bool:
        filled = self.num_blocks_for(request.num_computed_tokens)
        self.free(request)
        if not 0 < filled <= self.num_free_cpu_blocks:
            return False
        self.num_free_cpu_blocks -= filled
        request.num_cpu_blocks = filled
        return True

    def discard(self, request: Request) -> int:
        num_blocks = request.num_cpu_blocks
        self.num_free_cpu_blocks += num_blocks
        request.num_cpu_blocks = 0
        return num_blocks

    def check_integrity(self, residents: Iterable[Request], waiting: Iterable[Request] = ()) -> list[str]:
        residents, waiting = list(residents), list(waiting)
        faults = super().check_integrity(residents, waiting)
        faults += [f"{r.request_id}: runs and has host blocks" for r in residents if r.num_cpu_blocks]
        for request in waiting:
            if request.num_cpu_blocks != self.num_blocks_for(request.num_computed_tokens):
                faults.append(f"{request.request_id}: host blocks and computed tokens disagree")
        held = sum(request.num_cpu_blocks for request in waiting)
        if held + self.num_free_cpu_blocks != self.num_cpu_blocks:
            faults.append("host blocks held and free do not add up to the host pool")
        return faults


def make_kv_manager(config: SchedulerConfig) -> KVBlockManager:
    """The KV strategy that a configuration asks for."""
    if config.preemption == "swap":
        assert config.num_cpu_blocks is not None
        return SwappingKVManager(
            config.num_gpu_blocks,
            config.block_size,
            num_cpu_blocks=config.num_cpu_blocks,
            watermark=config.watermark,
        )
    return KVBlockManager(
        config.num_gpu_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        watermark=config.watermark,
    )
