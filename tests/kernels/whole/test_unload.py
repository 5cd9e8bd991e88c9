"""A model goes while its kernels are still being compiled: nobody waits, and its memory goes once."""

import gc
import threading
import weakref
from collections.abc import Iterator, Sized
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import engine.core.device_choice as facade
from engine.api.errors import EngineError
from engine.engine import Engine
from engine.model.spec import KVGroup, KVShape
from engine.runner import graph_runner
from engine.runner.graph_runner import GraphRunner
from engine.runner.warmup import CompileThread
from kernels.kv import vmm
from kernels.triton_operations import TritonOperations
from tests.support.tiny_gguf import make_tiny


class SlowCompile:
    """Steps that each wait to be let go."""

    def __init__(self, monkeypatch) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.steps = 0
        slow = self

        def try_out(runner: GraphRunner, sizes: Sized) -> Iterator[None]:
            for _ in range(3 if sizes is graph_runner.WARM_SIZES else 0):
                slow.entered.set()
                assert slow.go.wait(60)
                assert runner.kv.mapped_bytes, "memory was freed while a pass uses it"
                slow.steps += 1
                yield

        monkeypatch.setattr(GraphRunner, "_try_out", try_out)
        monkeypatch.setattr(graph_runner, "FIRST_SIZES", ())


@pytest.fixture
def slow(monkeypatch) -> SlowCompile:
    return SlowCompile(monkeypatch)


def make_runner(device: str) -> GraphRunner:
    config = SimpleNamespace(
        kv_groups=[KVGroup(KVShape(0, 2, 64), tuple(range(2)))], vocab_size=300, context_length=256
    )
    ops = TritonOperations(torch.device(device), "float16")
    runner = GraphRunner(SimpleNamespace(ops=ops, config=config), [5], 256, [])
    runner.frees = 0
    close = runner.kv.close

    def counted() -> None:
        runner.frees += 1
        close()

    runner.kv.close = counted
    return runner


def test_closing_does_not_wait_and_memory_goes_when_the_last_step_has_ended(slow, device):
    runner = make_runner(device)
    runner.warm_up(lambda part: None)
    assert slow.entered.wait(60)
    assert runner.compiling
    runner.close()
    runner.close()
    assert not runner.freed.is_set()
    assert runner.frees == 0
    slow.go.set()
    assert runner.freed.wait(60)
    assert (runner.frees, slow.steps, runner.compiling) == (1, 1, False)
    runner.close()
    assert runner.frees == 1


def test_without_a_compilation_closing_frees_at_once(slow, device):
    early = make_runner(device)
    early.close()
    early.close()
    assert (early.frees, early.freed.is_set()) == (1, True)
    late = make_runner(device)
    slow.go.set()
    late.warm_up(lambda part: None)
    while late.compiling:
        pass
    assert (late.frees, slow.steps) == (0, 3)
    late.close()
    assert (late.frees, late.freed.is_set()) == (1, True)


def test_a_freed_runner_is_kept_by_nobody(slow, device):
    runner = make_runner(device)
    runner.warm_up(lambda part: None)
    assert slow.entered.wait(60)
    freed, alive = runner.freed, weakref.ref(runner)
    runner.close()
    del runner
    slow.go.set()
    assert freed.wait(60)
    gc.collect()
    assert alive() is None


def test_close_and_the_end_of_the_steps_may_meet_anywhere():
    for _ in range(200):
        frees = []
        thread = CompileThread(lambda frees=frees: frees.append(1), torch.device("cpu"))
        thread.start(None for _ in range(3))
        closers = [threading.Thread(target=thread.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        assert thread.freed.wait(60)
        assert frees == [1]


def test_a_step_that_fails_ends_the_thread_and_memory_still_goes():
    def broken() -> Iterator[None]:
        yield
        raise RuntimeError("no compiler")

    frees = []
    thread = CompileThread(lambda: frees.append(1), torch.device("cpu"))
    thread.start(broken())
    while thread.running:
        pass
    assert not frees
    thread.close()
    assert frees == [1]


def test_the_engine_goes_on_while_a_model_that_compiles_is_unloaded(slow, device, monkeypatch, tmp_path):
    monkeypatch.setattr(facade, "operations_for", lambda *_: TritonOperations(torch.device(device), "auto"))
    path = make_tiny(tmp_path / "tiny.gguf", "qwen3", quant="F16", seed=5)
    with Engine("cpu", kv_budget_bytes=16 << 20, debug=True) as engine:
        slow.go.set()
        stays, goes = engine.load(path), engine.load(path)
        slow.entered.clear()
        slow.go.clear()
        gone = engine.load(path)
        assert slow.entered.wait(60)
        unloading = threading.Thread(target=gone.unload)
        unloading.start()
        while len(engine.stats().models) > 2:
            pass
        assert unloading.is_alive()
        assert not stays.compiling(), "an answer of the engine's thread"
        goes.unload()
        assert unloading.is_alive(), "it waits until its memory is free"
        slow.go.set()
        unloading.join(60)
        assert not unloading.is_alive()
        assert len(engine.stats().models) == 1


def closing_counted(monkeypatch) -> list[int]:
    """Every memory that is closed, of weights or KV, by the bytes it held."""
    closed = []
    original = vmm.HostMemory.close

    def close(memory) -> None:
        closed.append(memory.mapped_bytes)
        original(memory)

    monkeypatch.setattr(vmm.HostMemory, "close", close)
    return closed


def out_of_memory(engine: Engine, path: Path, what: type, name: str, monkeypatch) -> object:
    """Load where a method fails for memory; returns a weak reference to whose method it was."""
    held = []

    def no_memory(self, *_, **__):
        held.append(weakref.ref(self))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(what, name, no_memory)
        with pytest.raises(EngineError, match=r"tiny\.gguf: its weights need .* \(memory ran out"):
            engine.load(path)
    gc.collect()
    return held[0]()


def test_memory_that_runs_out_during_a_load_is_a_sentence_and_nothing_is_held(
    slow, device, monkeypatch, tmp_path
):
    if device != "cpu":
        pytest.skip("what runs out is simulated in host memory")
    monkeypatch.setattr(facade, "operations_for", lambda *_: TritonOperations(torch.device(device), "q8_0"))
    path = make_tiny(tmp_path / "tiny.gguf", "qwen3", quant="F16", seed=5)
    closed = closing_counted(monkeypatch)
    slow.go.set()
    with Engine("cpu", kv_budget_bytes=16 << 20) as engine:
        stays = engine.load(path)
        assert out_of_memory(engine, path, TritonOperations, "make_gate", monkeypatch) is None
        assert len(closed) == 1, "that of the weights: there were no pages yet"
        # The first memory that grows is that of the weights; pages and their scales come behind it.
        for what, name, held in [
            (vmm.HostMemory, "resize", 1),
            (GraphRunner, "_make_state", 3),
            (GraphRunner, "warm_up", 3),
        ]:
            closed.clear()
            assert out_of_memory(engine, path, what, name, monkeypatch) is None, f"{name}: still held"
            assert len(closed) == held, f"{name}: every memory is closed once"
        assert [model.name for model in engine.stats().models] == ["tiny"]
        engine.load(path).unload()
        assert not stays.compiling()
