"""A pass with guesses gives what passes one by one give, and leaves rows that go on rightly."""

import pytest
import torch

from engine import captured_pass
from engine.graph_runner import GraphRunner
from engine.recovery import Recovery
from engine.request import Request, SamplingParams
from engine.sequence import Sequence
from engine.tick_plan import ModelBatch, PrefillChunk
from kernels import triton_ops
from kernels.triton_ops import TritonOperations
from tests.passes import load_decoder
from tests.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=5.0, seed=11)
PROMPT = 13
"""Tokens: the answer crosses a block's border."""
SIZES = {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}


class Rows:
    """Two sequences of a tiny model on a runner; every step is a pass with both."""

    def __init__(self, runner: GraphRunner, sampling: SamplingParams, number: int) -> None:
        runner.forget()
        self.runner = runner
        self.rows = []
        for row in (0, 1):
            prompt = tuple(range(20 + row, 20 + row + PROMPT))
            one = Sequence(number + row, 0, Request(prompt, sampling, max_tokens=40), 0.0, 7)
            one.limit, one.block_table = PROMPT + 40, [1 + 2 * row, 2 + 2 * row]
            batch = ModelBatch(0, prefill=[PrefillChunk(one, 0, PROMPT)])
            one.token_ids.append(runner.run(batch).ids[one.sequence_id])
            one.num_computed = PROMPT
            self.rows.append(one)

    def step(self, draft: list[int] | None = None) -> int:
        """Guesses behind the first row alone; returns how many came true."""
        first = self.rows[0].sequence_id
        self.follow(self.runner.run(ModelBatch(0, self.rows, drafts={first: draft} if draft else {})))
        return self.confirmed

    def follow(self, result) -> None:
        assert not result.failed
        self.confirmed = len(result.confirmed.get(self.rows[0].sequence_id, ()))
        for one in self.rows:
            one.token_ids += [*result.confirmed.get(one.sequence_id, ()), result.ids[one.sequence_id]]
            one.num_computed = len(one.token_ids) - 1


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", "qwen3", quant="F16", seed=5, **SIZES)


@pytest.fixture(scope="module")
def make_runner(device, path):
    """Runners by whether results depend on the batch."""
    patch = pytest.MonkeyPatch()
    patch.setattr(triton_ops, "BLOCK_SIZE", 16)
    patch.setattr(TritonOperations, "block_size", 16)
    patch.setattr(captured_pass, "PASS_TOKENS", (16,))
    patch.setattr(captured_pass, "CHUNKS", (1,))
    made = {}

    def make(fixed: bool) -> GraphRunner:
        if fixed not in made:
            decoder = load_decoder(path, TritonOperations(torch.device(device), "auto", fixed))
            made[fixed] = GraphRunner(decoder, 10, 128, [])
        return made[fixed]

    yield make
    for runner in made.values():
        runner.close()
    patch.undo()


@pytest.mark.parametrize(("sampling", "fixed"), [(GREEDY, False), (DRAWN, True)])
def test_a_pass_confirms_what_passes_one_by_one_gave(make_runner, sampling, fixed):
    """Guesses right and wrong at every place, across a block's border, beside a row without any."""
    runner = make_runner(fixed)
    plain = Rows(runner, sampling, 1)
    for _ in range(11):
        plain.step()
    expected = [one.token_ids for one in plain.rows]
    guessed = Rows(runner, sampling, 3)
    for right, plain_steps in ((2, 0), (0, 1), (1, 0), (2, 1)):
        at = guessed.rows[0].num_target
        draft = expected[0][at : at + 2]
        if right < 2:
            draft[right] = (draft[right] + 1) % 300
        assert guessed.step(draft) == right
        for _ in range(plain_steps):
            assert guessed.step() == 0
    for one, ids in zip(guessed.rows, expected, strict=True):
        assert one.token_ids == ids[: one.num_target]
    assert guessed.rows[0].num_target == PROMPT + 12
