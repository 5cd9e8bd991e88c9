"""Weights leave the device and come back to the same addresses: what was captured of them stays valid."""

import threading

import pytest
import torch

from app.models.builtin import builtin_model_path
from engine.api.request import Request, SamplingParams
from engine.device import weight_memory
from engine.device.memory import free_bytes
from engine.device.weight_memory import WeightMemory
from engine.engine import Engine
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.decoder import Decoder
from engine.model.weights import load_weights
from engine.runner.graph_runner import GraphRunner
from engine.runner.warmup import CompileThread
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.sequence import Sequence
from kernels.streaming import pinned
from kernels.triton_operations import TritonOperations
from tests.engine.test_engine import wait_until
from tests.support.tiny_gguf import make_tiny

IDS = list(range(20, 50))


@pytest.fixture
def made(tmp_path, device, full, monkeypatch):
    """A runner and its weights, all of them in memory of their own, small as they are."""
    monkeypatch.setattr(weight_memory, "_LEAST_BYTES", 1)
    sizes = {} if full else {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
    path = make_tiny(tmp_path / "tiny.gguf", "qwen3", quant="Q8_0", seed=1, **sizes)
    ops = TritonOperations(torch.device(device), "auto")
    memory = WeightMemory(ops.device, 8 << 20)
    with open_gguf(path) as file:
        config = read_config(file)
        weights = load_weights(file, config, ops, lambda _part, _what: None, memory.adopt)
    runner = GraphRunner(Decoder(config, weights, ops), [20], 256, [], weights=memory)
    yield runner, weights, memory
    runner.close()


def places(weights) -> list[int]:
    found = weight_memory._tensors([weights.layers, weights.head])
    return [tensor.data_ptr() for tensor in found if tensor.numel()]


def next_id(runner: GraphRunner) -> int:
    """What a captured pass samples behind a prompt."""
    sequence = Sequence(1, 1, Request(tuple(IDS), SamplingParams(temperature=0.0)), 0.0)
    sequence.block_table, sequence.limit = [1], 100
    return runner.run(ModelBatch(1, [], [PrefillChunk(sequence, 0, len(IDS))])).ids[1]


def test_weights_are_back_where_they_were_and_graphs_go_on(made, full):
    runner, weights, memory = made
    before, wanted = places(weights), runner.logits(IDS)
    first = next_id(runner) if full else None
    base = memory._bytes.data_ptr()
    assert all(base <= place < base + memory.used_bytes for place in before)
    assert weight_memory.mapped_bytes(memory.device) >= memory.nbytes > 0
    assert runner.rest()
    assert memory.nbytes == 0 and memory.host_bytes == memory.used_bytes
    runner.wake()
    assert places(weights) == before
    assert torch.equal(runner.logits(IDS), wanted)
    assert first is None or next_id(runner) == first


def test_an_engine_pauses_and_wakes_a_model(full):
    if not full:
        pytest.skip("weights are put aside on a GPU alone")
    with Engine("cuda", kv_budget_bytes=1 << 30, speculation="off") as engine:
        model = engine.load(builtin_model_path())
        wait_until(lambda: not model.compiling())
        request = Request(tuple(IDS), SamplingParams(temperature=0.0), max_tokens=40, ignore_eog=True)
        wanted = model.submit(request).result(60)[0]
        before = free_bytes(engine._ops.device)
        engine.pause_model(model.id)
        aside = engine._loop.models.aside.get(model.id)
        assert aside is not None and aside.kept is not None
        runner = aside.kept.runner
        assert runner.weights.nbytes == 0 and free_bytes(engine._ops.device) > before
        replays = runner.replays
        assert model.submit(request).result(60)[0] == wanted
        assert engine._loop.models.get(model.id).runner is runner and runner.replays > replays


@pytest.fixture
def memory(device):
    made = WeightMemory(torch.device(device), 200 << 20)
    yield made
    made.close()


@pytest.fixture
def tensors(memory, device) -> list[torch.Tensor]:
    """More than one piece of a copy."""
    made = [torch.arange(9 << 20, dtype=torch.int32, device=device), torch.ones(70 << 20, dtype=torch.int8)]
    made[1] = made[1].to(device)
    memory.adopt(made)
    return made


def unharmed(tensors: list[torch.Tensor]) -> bool:
    numbers, ones = tensors
    return bool(numbers[-1] == len(numbers) - 1 and numbers[7] == 7 and ones.all())


def test_a_copy_is_kept_or_made_again(memory, tensors):
    for keep in (True, False, True):
        assert unharmed(tensors)
        assert memory.rest() and memory.nbytes == 0
        assert memory.host_bytes == memory.used_bytes == 106 << 20
        memory.wake(keep_copy=keep)
        assert (memory.host_bytes > 0) is keep
    assert unharmed(tensors)


def test_a_host_without_memory_leaves_weights_where_they_are(memory, tensors, monkeypatch):
    def none(*_sizes, **_more):
        raise OSError("Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pinned.mmap, "mmap", none)
        assert not memory.rest()
    assert memory.nbytes > 0 and memory.host_bytes == 0 and unharmed(tensors)


def test_a_full_device_leaves_weights_aside(memory, tensors, monkeypatch):
    assert memory.rest()

    def full(_bytes):
        raise MemoryError("the device has no 64 MiB left")

    with monkeypatch.context() as patch:
        patch.setattr(memory._memory, "resize", full)
        with pytest.raises(MemoryError):
            memory.wake(keep_copy=True)
    assert memory.nbytes == 0
    memory.wake(keep_copy=False)
    assert unharmed(tensors)


def test_what_finds_no_address_stays_where_it_is(device):
    memory = WeightMemory(torch.device(device), 1)
    large, small = torch.ones(80 << 20, dtype=torch.uint8), torch.ones(1 << 20)
    halves = [part.to(device) for part in (large, small)]
    pair = list(halves[1].view(2, -1))
    before = halves[0].data_ptr()
    memory.adopt([halves[0], pair])
    assert halves[0].data_ptr() == before
    assert pair[1].data_ptr() - pair[0].data_ptr() == 2 << 20 and memory.used_bytes == 4 << 20
    assert pair[1].sum() == 1 << 19
    memory.close()


def test_no_kernel_is_made_ready_while_weights_are_aside():
    freed, entered, go = threading.Event(), threading.Event(), threading.Event()
    thread = CompileThread(freed.set, torch.device("cpu"))

    def steps():
        entered.set()
        assert go.wait(60)
        yield
        raise AssertionError("a step began while weights were aside")

    thread.start(steps())
    assert entered.wait(60)
    paused = threading.Thread(target=thread.pause, daemon=True)
    paused.start()
    wait_until(lambda: thread._paused)
    go.set()
    paused.join(60)
    assert not paused.is_alive() and thread.running
    thread.close()
    assert freed.wait(60)
