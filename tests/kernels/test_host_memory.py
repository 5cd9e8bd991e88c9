import gc
import mmap
import weakref

import pytest
import torch

from kernels import host_memory
from kernels.host_memory import HostMemory, host_bytes


def test_what_one_model_takes_lies_apart_and_stays_as_it_was_written() -> None:
    memory = HostMemory()
    taken = [memory.take(*shape) for shape in ((3, 5), (1,), (0, 4), (2, 70_000), (16, 33))]
    for number, tensor in enumerate(taken):
        tensor.fill_(number + 1)
    assert [tuple(tensor.shape) for tensor in taken] == [(3, 5), (1,), (0, 4), (2, 70_000), (16, 33)]
    assert all((tensor == number + 1).all() for number, tensor in enumerate(taken))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in taken if tensor.numel())


def test_a_slab_that_is_full_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "SLAB_BYTES", 4096)
    memory = HostMemory()
    first, large, second, third = memory.take(3000), memory.take(9000), memory.take(1000), memory.take(1000)
    places = [tensor.untyped_storage().data_ptr() for tensor in (first, large, second, third)]
    assert places[0] == places[2] and len(set(places)) == 3
    first.fill_(1), second.fill_(2), third.fill_(3), large.fill_(4)
    assert [int(tensor.to(torch.int64).sum()) for tensor in (first, large, second, third)] == [
        3000, 36000, 2000, 3000,
    ]  # fmt: skip


def test_pages_go_with_the_last_tensor_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[mmap.mmap]] = []
    make = host_memory.make_pages

    def noted(count: int) -> mmap.mmap | None:
        pages = make(count)
        if pages is not None:
            made.append(weakref.ref(pages))
        return pages

    monkeypatch.setattr(host_memory, "make_pages", noted)
    tensor = host_bytes(5000).fill_(7)
    part = tensor[4000:]
    if not made:
        pytest.skip("no pages of their own here")
    del tensor
    gc.collect()
    assert made[0]() is not None and (part == 7).all()
    del part
    gc.collect()
    assert made[0]() is None
