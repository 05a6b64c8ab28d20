from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tinyllm.errors import InputError
from tinyllm.runner import kv_cache
from tinyllm.runner.kv_cache import KVCache, bytes_per_block, num_blocks_for

CPU = torch.device("cpu")


def test_the_bytes_of_a_block_are_those_of_its_tensors(make_model: Callable) -> None:
    config = make_model().config
    for dtype in (torch.float32, torch.bfloat16):
        cache = KVCache(config, 3, 16, CPU, dtype)
        assert cache.k.nbytes + cache.v.nbytes == 3 * bytes_per_block(config, 16, dtype)


def test_memory_is_filled_with_whole_blocks(make_model: Callable) -> None:
    config = make_model().config
    block_bytes = bytes_per_block(config, 16, torch.float32)
    assert num_blocks_for(5 * block_bytes + block_bytes - 1, config, 16, torch.float32) == 5
    with pytest.raises(InputError, match="hold no block: one block of 16 tokens takes"):
        num_blocks_for(block_bytes - 1, config, 16, torch.float32)


def test_what_was_written_by_slot_is_gathered_by_block(make_model: Callable, device: torch.device) -> None:
    cache = KVCache(make_model().config, 5, 4, device, torch.float32)
    k, v = torch.randn(2, 6, 2, 12, device=device)
    slots = torch.tensor([12, 13, 14, 15, 4, 5], device=device)
    cache.write(1, slots, k, v)
    found_k, found_v = cache.gather(1, torch.tensor([3, 1], device=device), 6)
    torch.testing.assert_close(found_k, k)
    torch.testing.assert_close(found_v, v)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_a_cache_of_nothing_is_refused(make_model: Callable, num_blocks: int, block_size: int) -> None:
    with pytest.raises(InputError, match="holds nothing: give --num-gpu-blocks and --block-size"):
        KVCache(make_model().config, num_blocks, block_size, CPU, torch.float32)


def test_a_cache_beyond_the_free_memory_is_refused_with_the_number_that_fits(
    make_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_model().config
    block_bytes = bytes_per_block(config, 16, torch.float32)
    monkeypatch.setattr(kv_cache, "available_memory", lambda device: 7 * block_bytes)
    KVCache(config, 7, 16, CPU, torch.float32)
    with pytest.raises(InputError, match="give --num-gpu-blocks 7 or less"):
        KVCache(config, 8, 16, CPU, torch.float32)
    monkeypatch.setattr(kv_cache, "available_memory", lambda device: block_bytes - 1)
    with pytest.raises(InputError, match="not even one block fits"):
        KVCache(config, 1, 16, CPU, torch.float32)


def test_the_free_memory_of_this_machine_is_known_or_none() -> None:
    free = kv_cache.available_memory(CPU)
    assert free is None or 1 << 20 < free < 1 << 50
