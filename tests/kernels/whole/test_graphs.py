"""A captured graph computes what its kernels compute one by one, and the same every time. On a GPU only."""

import pytest
import torch

from app.models.builtin import builtin_model_path
from engine.api.request import Request
from engine.engine import Engine
from engine.runner.cuda_graph import FIRST_SIZES, WARM_SIZES, CUDAGraphPass, PassSize
from engine.runner.graph_runner import GraphRunner
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.sequence import Sequence

SIZES = [size for size in (*FIRST_SIZES, *WARM_SIZES) if size.captured]
REPLAYS = 1000


class Passes:
    """Passes of a real model on rows with random text; `logits` are those of the last one computed."""

    def __init__(self, runner: GraphRunner) -> None:
        self.runner = runner
        self.logits = torch.empty(0)
        run = runner.decoder.run

        def recording(*args):
            self.logits = run(*args)
            return self.logits

        runner.decoder.run = recording

    def prepare(self, size: PassSize) -> CUDAGraphPass:
        """A pass of the shape with all rows and two chunks in use."""
        known, blocks = 30, iter(range(1, 300))
        decode = [
            self._sequence(number, known + number, [next(blocks), next(blocks)])
            for number in range(size.num_decode)
        ]
        room = size.num_tokens - size.num_decode
        lengths = [room - room // 3, room // 3] if size.num_chunks else []
        prefill = []
        for number, length in enumerate(lengths):
            table = [next(blocks) for _ in range(length // self.runner.block_size + 1)]
            prefill.append(PrefillChunk(self._sequence(100 + number, length, table), 0, length))
        batch = ModelBatch(1, decode[: 64 - len(prefill)], prefill)
        self.runner.forget()
        one = CUDAGraphPass(self.runner._state, size, self.runner._stream)
        one.fill(batch, self.runner._rows.place(batch.sequences))
        return one

    def launch(self, one: CUDAGraphPass) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and row state after the pass, from the same state as every time."""
        runner, state = self.runner, self.runner._state
        before = state.rows.clone()
        one.launch(runner._tick)
        result = self.logits.clone(), state.rows.clone()
        state.rows.copy_(before)
        return result

    @staticmethod
    def _sequence(number: int, known: int, table: list[int]) -> Sequence:
        ids = torch.randint(300, 8000, (known,), generator=torch.Generator().manual_seed(number)).tolist()
        made = Sequence(number, 1, Request(tuple(ids), max_tokens=900), 0.0, number)
        made.block_table, made.limit, made.num_computed = table, 1000, known - 1
        return made


@pytest.fixture(scope="module")
def passes(full):
    if not full:
        pytest.skip("there are no graphs without a GPU")
    with Engine("cuda", kv_budget_bytes=1 << 30) as engine:
        model = engine.load(builtin_model_path())
        while model.compiling():
            pass
        passes = Passes(engine._loop.models.get(model._key).runner)
        with torch.inference_mode(), passes.runner._stream.current():
            yield passes
            passes.runner._stream.synchronize()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size.counts)))
def test_a_graph_computes_what_its_kernels_do(passes, size):
    one = passes.prepare(size)
    eager = passes.launch(one)
    one.capture(passes.runner._tick)
    replayed = passes.launch(one)
    assert eager[0].isfinite().all()
    assert all(map(torch.equal, eager, replayed))


@pytest.mark.parametrize("size", [PassSize(8, 0, 8), PassSize(8, 8, 128)], ids=("rows", "mixed"))
def test_a_thousand_replays_have_the_same_bits(passes, size):
    one = passes.prepare(size)
    first = passes.launch(one)
    one.capture(passes.runner._tick)
    different = torch.zeros((), dtype=torch.int64, device=first[0].device)
    for _ in range(REPLAYS):
        for part, expected in zip(passes.launch(one), first, strict=True):
            different += (part != expected).sum()
    assert different.item() == 0
