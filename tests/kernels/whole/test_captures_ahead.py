"""Shapes are captured while nothing runs, and not while rows decode if that is the longer way."""

from types import SimpleNamespace

import pytest
import torch

from engine.api.request import Request
from engine.model.spec import KVGroup, KVShape
from engine.runner import cuda_graph, graph_runner
from engine.runner.cuda_graph import PassSize
from engine.runner.graph_runner import GraphRunner
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.sequence import Sequence
from kernels.triton_operations import TritonOperations

FIRST, MIXED, DECODE = PassSize(1, 0, 1), PassSize(8, 8, 64), PassSize(2, 0, 2)
TOO_LARGE = PassSize(0, 1, 1024)


class Captures:
    """A runner whose passes compute nothing; tells what was launched and captured, in order."""

    def __init__(self, device: str, monkeypatch) -> None:
        monkeypatch.setattr(graph_runner, "FIRST_SIZES", (FIRST,))
        monkeypatch.setattr(graph_runner, "WARM_SIZES", (TOO_LARGE, MIXED, DECODE))
        monkeypatch.setattr(GraphRunner, "_compute", lambda *_: None)
        self.made: list[PassSize] = []
        original = cuda_graph.CUDAGraphPass.capture

        def capture(one, compute) -> None:
            assert one.has_run, "a pass is captured before its kernels are compiled"
            self.made.append(one.size)
            original(one, compute)

        monkeypatch.setattr(cuda_graph.CUDAGraphPass, "capture", capture)
        config = SimpleNamespace(
            kv_groups=[KVGroup(KVShape(0, 2, 64), tuple(range(1)))], vocab_size=300, context_length=256
        )
        ops = TritonOperations(torch.device(device), "float16")
        self.runner = GraphRunner(SimpleNamespace(ops=ops, config=config), [40], 256, [])

    def warm_up(self) -> GraphRunner:
        self.runner.warm_up(lambda part: None)
        while self.runner._compiler.running:
            pass
        return self.runner


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 32])
def test_every_shape_of_a_few_tabs_is_captured_ahead(rows):
    """What is captured later takes memory after the budgets were set, and rows wait for it."""
    ahead = {*cuda_graph.FIRST_SIZES, *cuda_graph.WARM_SIZES}
    for tokens in range(1, 512 - rows):
        batch = SimpleNamespace(
            decode=[None] * rows, prefill=[SimpleNamespace(length=tokens)], num_draft=lambda _: 0
        )
        size = cuda_graph.captured_size(batch)
        assert size is None or size in ahead, size
    alone = SimpleNamespace(decode=[None] * max(1, rows), prefill=[], num_draft=lambda _: 0)
    assert cuda_graph.captured_size(alone) in ahead


@pytest.fixture
def captures(device, monkeypatch):
    captures = Captures(device, monkeypatch)
    yield captures
    captures.runner.close()


def sequence(number: int, block: int, known: int) -> Sequence:
    request = Request(tuple(range(10, 10 + known)), max_tokens=20)
    made = Sequence(number, 1, request, 0.0, 7)
    made.block_table, made.limit, made.num_computed = [block], 64, known - 1
    return made


def mixed_batch() -> ModelBatch:
    reader = sequence(2, 2, 30)
    return ModelBatch(1, [sequence(1, 1, 5)], [PrefillChunk(reader, 0, 20)])


def test_each_piece_of_idle_work_is_one_capture(captures):
    runner = captures.warm_up()
    assert captures.made == [FIRST]
    assert runner.compiling
    assert runner.idle_work()
    assert captures.made == [FIRST, MIXED]
    assert not runner.idle_work()
    assert captures.made == [FIRST, MIXED, DECODE]
    assert not runner.compiling
    assert not runner.idle_work()
    assert len(captures.made) == 3
    assert not runner.notes.take(), "a tick was told of captures that were made before it"
    runner.run(mixed_batch())
    assert (runner.replays, runner.eager_passes) == (1, 0)
    assert runner.notes.shape == (8, 8, 64)


def test_nothing_is_captured_while_the_thread_compiles(captures, monkeypatch):
    runner = captures.warm_up()
    monkeypatch.setattr(type(runner._compiler), "running", True)
    assert runner.idle_work()
    assert captures.made == [FIRST]


def test_a_capture_that_fails_is_not_tried_again_when_idle(captures, monkeypatch):
    runner = captures.warm_up()

    def broken(one, compute) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(cuda_graph.CUDAGraphPass, "capture", broken)
    assert runner.idle_work()
    assert not runner.idle_work()
    assert not runner.compiling
    assert captures.made == [FIRST]


def test_rows_that_decode_do_not_wait_for_a_capture(captures):
    runner = captures.warm_up()
    runner._capture_policy.capture_ms = 1e9
    runner.run(mixed_batch())
    assert captures.made == [FIRST]
    assert (runner.replays, runner.eager_passes) == (0, 1)
    assert "kernel by kernel" in runner.notes.take()
    assert runner._capture_policy.launch_ms is not None
    # What launching it costs is now more than a capture: it is made.
    runner._capture_policy.capture_ms = 0.0
    runner.run(mixed_batch())
    assert captures.made == [FIRST, MIXED]
    assert (runner.replays, runner.eager_passes) == (1, 1)
    assert any(note.startswith("capture") for note in runner.notes.take())


def test_without_rows_that_wait_a_shape_is_captured_at_once(captures):
    runner = captures.warm_up()
    runner._capture_policy.capture_ms = 1e9
    runner.run(ModelBatch(1, [], [PrefillChunk(sequence(2, 2, 30), 0, 20)]))
    assert captures.made == [FIRST, PassSize(0, 8, 64)]
    assert runner.replays == 1


def test_many_rows_beside_a_prompt_that_is_read_to_its_end(captures):
    """Padding places the prompt behind 64 decode rows; its id has a place in the report all the same."""
    runner = captures.warm_up()
    rows = [sequence(number, number, 5) for number in range(1, 36)]
    reader = sequence(36, 36, 20)
    result = runner.run(ModelBatch(1, rows, [PrefillChunk(reader, 0, 20)]))
    assert not result.ids and not result.failed
    assert runner.notes.shape == (64, 8, 128)
