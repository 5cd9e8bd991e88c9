"""A pass with drafts gives what passes one by one give, and leaves rows that go on rightly."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.api.request import Request, SamplingParams
from engine.core.recovery.pass_recovery import PassRecovery
from engine.model.spec import KVGroup, KVShape
from engine.runner import cuda_graph
from engine.runner.graph_runner import GraphRunner
from engine.runner.sampler import Sampled
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.sequence import Sequence
from kernels import triton_operations
from kernels.contract import LayerAttention, Rotation
from kernels.cuda.activations import PassTables
from kernels.kv.slab_kv import SlabKV
from kernels.triton_operations import TritonOperations, TritonPass

GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=1.0, seed=11)
VOCAB, BLOCKS, BLOCK_SIZE = 64, 10, 16


class HashModel:
    """A decoder whose logits are a hash of the tokens that it finds in the pages of a row's context."""

    def __init__(self, device: str) -> None:
        self.config = SimpleNamespace(
            kv_groups=[KVGroup(KVShape(0, 1, 64), (0,))], vocab_size=VOCAB, context_length=64
        )
        self.rotations: list[Rotation] = []
        self.ops = TritonOperations(torch.device(device), "float16")
        self.pages = [-1] * BLOCKS * BLOCK_SIZE
        self.broken: int | None = None
        """A context's length whose logits are no numbers."""
        self.fails = 0

    def run(self, ids: Tensor, prepared: list[TritonPass], logit_rows: Tensor) -> Tensor:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("a cosmic ray")
        tables = prepared[0].tables
        for slot, token in zip(tables.slots.tolist(), ids.tolist(), strict=True):
            self.pages[slot] = token
        lengths, starts = tables.context_lens.tolist(), tables.query_starts.tolist()
        logits = torch.zeros(1, len(logit_rows), VOCAB)
        for place, token in enumerate(logit_rows.tolist()):
            row = next((r for r, start in enumerate(starts[1:]) if start > token), None)
            if row is None or not lengths[row]:
                continue
            table, seen = tables.block_tables[row].tolist(), 7
            for position in range(lengths[row]):
                slot = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                seen = (seen * 31 + self.pages[slot] + 1) % 1_000_003
            logits[0, place] = torch.rand(VOCAB, generator=torch.Generator().manual_seed(seen)) * 8
            if lengths[row] == self.broken:
                logits[0, place] = float("nan")
        return logits.to(ids.device)


@pytest.fixture(scope="module")
def model(device) -> Iterator[HashModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_operations, "BLOCK_SIZE", BLOCK_SIZE)
        patch.setattr(TritonOperations, "block_size", BLOCK_SIZE)
        patch.setattr(cuda_graph, "PASS_TOKENS", (16,))
        patch.setattr(cuda_graph, "CHUNKS", (1,))
        # What is computed here waits for the device, which a graph cannot.
        patch.setattr(GraphRunner, "_capture", lambda *_: None)
        yield HashModel(device)


@pytest.fixture(scope="module")
def runner(model) -> Iterator[GraphRunner]:
    made = GraphRunner(model, [BLOCKS], 64, [])
    yield made
    made.close()


@pytest.fixture(scope="module")
def texts(runner) -> list[list[int]]:
    """A greedy and a drawn text, token by token."""
    rows = [start(runner, GREEDY, 0), start(runner, DRAWN, 1)]
    for _ in range(8):
        step(runner, rows)
    return [row.token_ids for row in rows]


def start(
    runner: GraphRunner, sampling: SamplingParams, number: int, prompt: int = 14, limit: int = 60
) -> Sequence:
    """A sequence with one token of its answer."""
    ids = tuple(range(20 + number, 20 + number + prompt))
    made = Sequence(number, 0, Request(ids, sampling, max_tokens=40), 0.0, seed=7)
    made.limit, made.block_table = limit, [1 + 3 * number, 3 + 3 * number, 2 + 3 * number]
    follow([made], runner.run(ModelBatch(0, prefill=[PrefillChunk(made, 0, prompt)])))
    return made


def follow(rows: list[Sequence], result: Sampled) -> None:
    """What a commit does."""
    assert not result.failed
    for one in rows:
        one.token_ids += [*result.accepted.get(one.sequence_id, ()), result.ids[one.sequence_id]]
        one.num_computed = len(one.token_ids) - 1


def step(runner: GraphRunner, rows: list[Sequence], drafts: dict[int, list[int]] | None = None) -> Sampled:
    result = runner.run(ModelBatch(0, list(rows), drafts=drafts or {}))
    follow(rows, result)
    return result


def test_a_pass_confirms_what_passes_one_by_one_gave(runner, texts):
    """Drafts right and wrong at each place, across a block's border, alone and beside others'."""
    rows = [start(runner, GREEDY, 0), start(runner, DRAWN, 1)]
    for right in ((2, None), (0, 1), (None, 0), (None, None), (1, 2)):
        drafts = {}
        for row, count, text in zip(rows, right, texts, strict=True):
            if count is not None:
                draft = text[row.num_target : row.num_target + 2]
                draft[count:] = [(token + 1) % VOCAB for token in draft[count:]]
                drafts[row.sequence_id] = draft
        result = step(runner, rows, drafts)
        assert [len(result.accepted.get(row, ())) for row in (0, 1)] == [count or 0 for count in right]
    assert [row.token_ids for row in rows] == [text[: 15 + 8] for text in texts]


def test_what_ends_a_row_does_not_end_its_drafts(runner, texts):
    """On the device a row ends with an end of text or at its limit; of drafts the host decides."""
    one = start(runner, GREEDY, 0)
    one.limit = 17
    with torch.inference_mode():
        runner._state.end_ids[0] = texts[0][16]
    try:
        assert step(runner, [one], {0: texts[0][15:18]}).accepted == {0: texts[0][15:18]}
    finally:
        with torch.inference_mode():
            runner._state.end_ids[0] = -1


def test_a_row_is_queued_ahead_behind_drafts(runner, texts):
    """Its own row was not told of them; sent anew, it goes on by itself."""
    one = start(runner, DRAWN, 1)
    step(runner, [one], {1: texts[1][15:17]})
    batch = ModelBatch(0, [one])
    runner.begin(batch)
    runner.launch(batch)
    runner.launch(batch)
    assert [runner.collect().ids, runner.collect().ids] == [{1: token} for token in texts[1][18:20]]


def test_a_row_goes_on_where_its_limit_has_risen(runner, texts):
    """The limit follows the KV budget; a row ends by itself on the device."""
    one = start(runner, GREEDY, 0, limit=17)
    one.limit = 60
    for _ in range(4):
        step(runner, [one])
    assert one.token_ids == texts[0][:19]


def test_logits_that_are_no_numbers_count_where_a_row_is_needed(runner, model, texts, monkeypatch):
    one = start(runner, GREEDY, 0)
    monkeypatch.setattr(model, "broken", 17)
    for right in (2, 1):
        draft = texts[0][15:18]
        draft[right] = (draft[right] + 1) % VOCAB
        result = runner.run(ModelBatch(0, [one], drafts={0: draft}))
        # The row that knows 17 tokens is needed when both drafts in it came true.
        assert (0 in result.failed, 0 in result.ids) == (right == 2, right < 2)


def test_rows_that_were_drafted_survive_a_pass_that_fails(runner, model, texts, monkeypatch):
    one = start(runner, GREEDY, 0)
    step(runner, [one], {0: texts[0][15:17]})
    monkeypatch.setattr(model, "fails", 1)
    batch = ModelBatch(0, [one], drafts={0: texts[0][18:20]})
    with pytest.raises(RuntimeError) as failure:
        runner.run(batch)
    result = PassRecovery(torch.device("cpu"), lambda batch: None).run(runner, batch, failure.value)
    assert (result.ids, result.accepted) == ({0: texts[0][18]}, {})


def test_rows_with_edited_logits_take_no_drafts(runner):
    def row(**sampling) -> Sequence:
        return Sequence(1, 0, Request((1, 2), SamplingParams(**sampling), max_tokens=4), 0.0)

    assert runner.can_verify(row()) and runner.can_verify(row(temperature=0.8, top_k=5))
    for edited in ({"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"logit_bias": {3: 1.0}}):
        assert not runner.can_verify(row(**edited))


def test_drafts_that_fit_no_pass_are_refused(runner):
    assert runner.verify_rows == 0, "nothing is captured here"
    with pytest.raises(ValueError, match="17 draft tokens behind 1 rows"):
        runner.run(ModelBatch(0, [start(runner, GREEDY, 0)], drafts={0: [1] * 17}))


@pytest.mark.parametrize("batch_invariant", [False, True], ids=["decode attention", "batch-independent"])
def test_attention_of_a_draft_sees_the_drafts_before_it(device, batch_invariant, monkeypatch):
    """Three rows of one context in a pass, and one by one."""
    monkeypatch.setattr(triton_operations, "BLOCK_SIZE", BLOCK_SIZE)
    ops = TritonOperations(torch.device(device), "float16", batch_invariant)
    torch.manual_seed(1)
    qkv = torch.randn(1, 3, 4 * 32, device=device)
    inv_freq = torch.tensor([0.5**i for i in range(16)], dtype=torch.float64, device=device)
    rotation = Rotation(inv_freq, 1.0, "halves")

    def attend(rows: range, kv: SlabKV) -> Tensor:
        def ints(values) -> Tensor:
            return torch.tensor(list(values), dtype=torch.int32, device=device)

        tables = PassTables(
            query_starts=ints(range(len(rows) + 1)),
            context_lens=ints(15 + row for row in rows),
            block_tables=ints([2, 1] * len(rows)).view(-1, 2),
            positions=ints(14 + row for row in rows),
            slots=ints((46, 47, 16)[row] for row in rows).long(),
            num_decode=len(rows),
            num_tokens=len(rows),
            shares_kv=len(rows) > 1,
        )
        prepared = ops.prepare_tables([tables], [kv], [rotation])
        part = qkv[:, rows.start : rows.stop].contiguous()
        return ops.attend(part, prepared, 0, LayerAttention(0, 32**-0.5)).values

    pages = []
    for _ in range(2):
        kv = ops.make_kv(1, 3, 1, 32)
        kv.back(3)
        kv.pages.values[:, 1:] = torch.randn(1, 2, 2, 1, 16, 32, generator=torch.Generator().manual_seed(3))
        pages.append(kv)
    together = attend(range(3), pages[0])
    alone = torch.cat([attend(range(row, row + 1), pages[1]) for row in range(3)])
    torch.testing.assert_close(together, alone, rtol=0.0, atol=0.0 if batch_invariant else 2e-3)
    for kv in pages:
        kv.close()
