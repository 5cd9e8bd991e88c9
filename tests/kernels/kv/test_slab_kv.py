"""KV memory that grows and shrinks: what is behind the backed blocks, and what stays."""

import gc

import pytest
import torch

from kernels.kv import slab_kv
from kernels.kv.slab_kv import SlabKV
from kernels.kv.vmm import SLAB_BYTES, HostMemory, reserve


@pytest.mark.parametrize("kv_format", ["float16", "bfloat16", "q8_0"])
def test_blocks_keep_their_contents_while_memory_grows(kv_format, device):
    kv = SlabKV(3, 2000, 2, 64, 64, kv_format, torch.device(device))
    assert kv.layer(1).values.shape == (2000, 2, 2, 64, 64)
    assert not kv.layer(2).values[0].any()
    first = kv.backed_blocks
    assert 1 <= first < 2000
    kv.layer(2).values[first - 1].fill_(3)
    kv.back(first + 5)
    assert kv.backed_blocks >= first + 5
    kv.layer(2).values[first + 4].fill_(5)
    assert bool((kv.layer(2).values[first - 1] == 3).all())
    kv.trim(first)
    assert kv.backed_blocks <= first + 5
    assert bool((kv.layer(2).values[first - 1] == 3).all())
    kv.close()


def test_mapped_bytes_follow_the_need(device):
    memory = reserve(torch.device(device), 10 * SLAB_BYTES)
    memory.resize(3 * SLAB_BYTES + 1)
    assert memory.mapped_bytes == 4 * SLAB_BYTES
    memory.resize(SLAB_BYTES)
    assert memory.mapped_bytes == SLAB_BYTES
    memory.close()


def test_memory_goes_back_to_the_device(device):
    if device == "cpu":
        return
    free = torch.cuda.mem_get_info()[0]
    memory = reserve(torch.device(device), 100 << 30)
    memory.resize(2 << 30)
    assert free - torch.cuda.mem_get_info()[0] >= 2 << 30
    memory.close()
    assert abs(free - torch.cuda.mem_get_info()[0]) < 16 << 20


def test_a_full_device_is_an_error_that_can_be_handled(device):
    if device == "cpu":
        return
    memory = reserve(torch.device(device), 1 << 40)
    with pytest.raises(MemoryError):
        memory.resize(1 << 40)
    memory.close()


@pytest.mark.parametrize("closed", [True, False])
def test_what_nobody_closes_is_given_back_once_when_it_is_collected(closed, monkeypatch):
    ended: list[HostMemory] = []

    class Noted(HostMemory):
        def close(self) -> None:
            ended.append(self)
            super().close()

    monkeypatch.setattr(slab_kv, "reserve", lambda device, num_bytes: Noted(num_bytes))
    kv = SlabKV(1, 3, 1, 32, 16, "q8_0", torch.device("cpu"))
    memories = list(kv._memories)
    if closed:
        kv.close()
    del kv
    gc.collect()
    assert ended == memories


def test_what_cannot_be_made_whole_is_given_back(monkeypatch):
    ended: list[HostMemory] = []

    class Full(HostMemory):
        def resize(self, num_bytes: int) -> None:
            raise MemoryError("full")

        def close(self) -> None:
            ended.append(self)

    monkeypatch.setattr(slab_kv, "reserve", lambda device, num_bytes: Full(num_bytes))
    with pytest.raises(MemoryError):
        SlabKV(1, 3, 1, 32, 16, "q8_0", torch.device("cpu"))
    gc.collect()
    assert len(ended) == 2
