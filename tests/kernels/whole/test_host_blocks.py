"""KV blocks go to host memory and come back bit-equal, and host memory grows behind the caller's back."""

import threading
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from engine.device import host_pool
from engine.device.host_pool import HostPool
from engine.model.spec import KVGroup, KVShape
from engine.runner.eager_runner import EagerRunner
from engine.runner.graph_runner import GraphRunner
from kernels.contract import Operations
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from kernels.select import CPU_BLOCK_SIZE
from kernels.triton_operations import TritonOperations

CONFIG = SimpleNamespace(
    kv_groups=[KVGroup(KVShape(0, 2, 64), tuple(range(3)))], vocab_size=300, context_length=256
)
BLOCKS = 9
KINDS = {
    "graph": ["float16", "bfloat16", "q8_0"],
    "torch": ["float32", "float16", "bfloat16"],
    "cpu": ["float32", "bfloat16"],
}


def in_stream(runner) -> AbstractContextManager[object]:
    """Where the runner queues its copies: what it copies is written and read in order with them."""
    return runner._stream.current() if isinstance(runner, GraphRunner) else nullcontext()


def make_runner(kind: str, kv_dtype: str, device: str):
    place = torch.device(device)
    ops: Operations
    if kind == "graph":
        ops = TritonOperations(place, kv_dtype)
        return GraphRunner(SimpleNamespace(ops=ops, config=CONFIG), [BLOCKS], 256, [])
    if kind == "torch":
        ops = TorchOperations(place, "float32", kv_dtype, CPU_BLOCK_SIZE)
    else:
        ops = CPUOperations(torch.device("cpu"), "float32", kv_dtype, CPU_BLOCK_SIZE)
    return EagerRunner(SimpleNamespace(ops=ops, config=CONFIG), [BLOCKS])


def block_bytes(runner, block: int) -> list[torch.Tensor]:
    pieces = runner.kv.pieces(0, block)
    return [piece.contiguous().view(torch.uint8).cpu().clone() for piece in pieces]


def fill(runner, block: int, seed: int) -> None:
    """Random bits: no number, infinities and denormals among them."""
    generator = torch.Generator().manual_seed(seed)
    for piece in runner.kv.pieces(0, block):
        bits = torch.randint(0, 256, (piece.nbytes,), dtype=torch.uint8, generator=generator)
        piece.copy_(bits.view(piece.dtype).view(piece.shape))


def test_blocks_come_back_as_they_were(device, monkeypatch):
    monkeypatch.setattr(host_pool, "SLAB_BYTES", 1 << 18)
    for kind, kv_dtype in [(kind, kv_dtype) for kind, types in KINDS.items() for kv_dtype in types]:
        with torch.inference_mode():
            runner = make_runner(kind, kv_dtype, device)
        with torch.inference_mode(), in_stream(runner):
            runner.reload_blocks([])
            ops = runner.decoder.ops
            expected = ops.kv_block_bytes(3, 2, 64)
            assert sum(piece.nbytes for piece in runner.kv.pieces(0, 1)) == expected
            for block in range(1, BLOCKS):
                fill(runner, block, block)
            before = {block: block_bytes(runner, block) for block in range(1, BLOCKS)}
            runner.host_pools[0].grow_to(6)
            assert runner.host_pools[0].wait(60)
            # A slot of every slab, out of order; the blocks are reused at once, as a tick would.
            runner.offload_blocks([(0, 2, 5), (0, 7, 0), (0, 4, 3)])
            for block in (2, 4, 7):
                fill(runner, block, 100 + block)
            runner.offload_blocks([(0, 2, 1)])
            overwritten = block_bytes(runner, 2)
            runner.reload_blocks([(0, 8, 5), (0, 2, 0), (0, 1, 3), (0, 7, 1)])
            after = {block: block_bytes(runner, block) for block in range(1, BLOCKS)}
        came_from = {8: before[2], 2: before[7], 1: before[4], 7: overwritten, 3: before[3], 5: before[5]}
        for block, bits in came_from.items():
            assert all(map(torch.equal, after[block], bits)), (kind, kv_dtype, block)
        runner.close()
        assert runner.host_pools[0].capacity == 0


def test_the_bytes_of_a_slot_are_all_of_a_block(device):
    """What is saved to a file and read back into another slot is the block, whatever lays it out."""
    for kind, kv_dtype in [(kind, kv_dtype) for kind, types in KINDS.items() for kv_dtype in types]:
        with torch.inference_mode():
            runner = make_runner(kind, kv_dtype, device)
        runner.restore_blocks([], [])
        if kind == "graph":
            runner.kv.back(0, BLOCKS)
        with torch.inference_mode(), in_stream(runner):
            fill(runner, 3, 1)
            before = block_bytes(runner, 3)
        written, read = ([pool.staging(2)] for pool in runner.host_pools * 2)
        runner.save_blocks(written, [(0, 3, 1)]).synchronize()
        assert len(written[0].content(1)) == runner.decoder.ops.kv_block_bytes(3, 2, 64)
        read[0].content(0)[:] = written[0].content(1)
        runner.restore_blocks(read, [(0, 6, 0)]).synchronize()
        with torch.inference_mode(), in_stream(runner):
            assert all(map(torch.equal, block_bytes(runner, 6), before)), (kind, kv_dtype)
        runner.close()


def test_slots_of_a_gpu_are_pinned_behind_the_caller(monkeypatch):
    monkeypatch.setattr(host_pool, "SLAB_BYTES", 4096)
    go, threads = threading.Event(), []

    def slow(num_bytes: int) -> torch.Tensor:
        threads.append(threading.current_thread())
        assert go.wait(60)
        return torch.zeros(num_bytes, dtype=torch.uint8)

    blocks = HostPool(1000, torch.device("cuda"), allocate=slow)
    blocks.grow_to(9)
    assert blocks.capacity == 0
    with pytest.raises(IndexError):
        blocks.parts(0, [])
    go.set()
    assert blocks.wait(60)
    assert blocks.capacity == 12
    assert blocks.nbytes == 3 * 4096
    assert threading.current_thread() not in threads
    blocks.grow_to(5)
    assert blocks.capacity == 12
    pieces = [torch.zeros(100, dtype=torch.int32), torch.zeros(3, 100, dtype=torch.float16)]
    for slot in range(12):
        for part in blocks.parts(slot, pieces):
            part.fill_(slot)
    for slot in range(12):
        parts = blocks.parts(slot, pieces)
        assert [(part.dtype, part.shape) for part in parts] == [(p.dtype, p.shape) for p in pieces]
        assert all(bool((part == slot).all()) for part in parts), "slots overlap"


def test_growth_ends_where_memory_does_and_may_be_asked_for_again(monkeypatch):
    monkeypatch.setattr(host_pool, "SLAB_BYTES", 4096)
    left = [1]

    def scarce(num_bytes: int) -> torch.Tensor:
        if not left[0]:
            raise RuntimeError("CUDA error: out of memory")
        left[0] -= 1
        return torch.zeros(num_bytes, dtype=torch.uint8)

    blocks = HostPool(4096, torch.device("cuda"), allocate=scarce)
    blocks.grow_to(3)
    assert blocks.wait(60)
    assert blocks.capacity == 1
    left[0] = 5
    blocks.grow_to(3)
    assert blocks.wait(60)
    assert blocks.capacity == 3
    assert left[0] == 3


def test_memory_that_arrives_after_the_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(host_pool, "SLAB_BYTES", 4096)
    go, asked = threading.Event(), threading.Event()

    def slow(num_bytes: int) -> torch.Tensor:
        asked.set()
        assert go.wait(60)
        return torch.zeros(num_bytes, dtype=torch.uint8)

    blocks = HostPool(4096, torch.device("cuda"), allocate=slow)
    blocks.grow_to(2)
    assert asked.wait(60)
    blocks.close()
    go.set()
    assert blocks.wait(60)
    assert blocks.capacity == 0
