"""Texts with drafts verified in the same pass are those without (float32), whatever happens meanwhile."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.api.generation import Generation
from engine.api.request import Finished, FinishReason, Request, SamplingParams
from engine.engine import Engine, Model
from engine.runner.eager_runner import EagerRunner
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.sequence import Sequence
from engine.speculation.speculator import Speculator
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from kernels.select import CPU_BLOCK_SIZE as BLOCK_SIZE
from tests.support.passes import load_decoder
from tests.support.paused import submit_paused
from tests.support.shallow_model import make_shallow

GREEDY = SamplingParams(temperature=0.0)
SUMS = "What is 14 + 19?\nassistant\nThe answer is 33.\nuser\n" * 3
STORY = "The little fox found a red ball near the river. She took it home to her mother. "
WORDS = "one two three four " * 12
NUMBERS = "1, 2, 3, 4, 5, " * 16
PROMPTS = (SUMS, STORY * 4, WORDS, NUMBERS)
PENALISED = SamplingParams(temperature=0.0, repetition_penalty=1.02, frequency_penalty=0.01)
DRAWN = SamplingParams(temperature=0.6, top_k=10, seed=11)


class Eager(Speculator):
    """Drafts whatever matches, however little it pays, so that refusals are many too."""

    proposed = accepted = 0

    def _counts(self, batch, free):
        room = max(0, free) // len(batch.decode)
        super()._counts(batch, free)
        levels = [self._proposers[sequence.sequence_id].level for sequence in batch.decode]
        return [0 if level is None else min(room, 7) for level in levels]

    def settle(self, plan, accepted, started, ended):
        Eager.proposed += sum(len(draft) for batch in plan.batches for draft in batch.drafts.values())
        Eager.accepted += sum(map(len, accepted.values()))
        super().settle(plan, accepted, started, ended)


def new_engine(speculation: str, **options) -> Engine:
    exact = {"weight_dtype": "float32", "kv_dtype": "float32", "kv_budget_bytes": 64 << 20}
    return Engine("cpu", speculation=speculation, debug=True, **exact | options)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shallow(tmp_path_factory.mktemp("shallow") / "shallow.gguf")


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[Model]:
    with new_engine("off") as engine:
        yield engine.load(path)


@pytest.fixture(scope="module")
def eager(path: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.core.loop.Speculator", Eager)
        engine = new_engine("auto")
    with engine:
        yield engine.load(path)


@pytest.fixture(autouse=True)
def counts_from_zero(monkeypatch):
    monkeypatch.setattr(Eager, "proposed", 0)
    monkeypatch.setattr(Eager, "accepted", 0)


def request_of(model: Model, prompt: str, sampling=GREEDY, tokens=40, **more) -> Request:
    ids = tuple(model.tokenizer.encode(prompt))
    return Request(ids, sampling, max_tokens=tokens, **{"ignore_eog": True, **more})


def submit(model: Model, prompt: str, *what, **more) -> Generation:
    return model.submit(request_of(model, prompt, *what, **more))


def ids_of(generation: Generation) -> list[int]:
    events = list(generation.events())
    assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
    return [token for event in events[:-1] for token in event.token_ids]


def ids_from(model: Model, *asked: tuple) -> list[list[int]]:
    return [ids_of(generation) for generation in [submit(model, *one) for one in asked]]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, PENALISED], ids=["greedy", "drawn", "penalised"])
def test_texts_are_the_same_alone_and_together(plain: Model, eager: Model, sampling: SamplingParams):
    asked = [(prompt, sampling) for prompt in PROMPTS]
    expected = ids_from(plain, *asked)
    assert [ids_from(eager, one)[0] for one in asked] == expected
    alone = Eager.proposed
    assert ids_from(eager, *asked) == expected
    assert Eager.proposed > alone > Eager.accepted / 2 > 10


def with_own_answer(plain: Model, prompt: str) -> str:
    """A prompt, what it is answered, and the prompt again."""
    (answer,) = ids_from(plain, (prompt,))
    return prompt + plain.tokenizer.decode(answer) + "\n" + prompt


def test_quoting_oneself_is_the_same(plain: Model, eager: Model):
    prompt = with_own_answer(plain, WORDS)
    assert ids_from(eager, (prompt,), (STORY,)) == ids_from(plain, (prompt,), (STORY,))
    assert Eager.accepted > 10


def test_what_pays_is_drafted_without_being_forced(path: Path, plain: Model):
    with new_engine("auto") as engine:
        model = engine.load(path)
        generation, sequence = submit_paused(model, request_of(model, WORDS, tokens=120))
        generation.resume()
        assert ids_of(generation) == ids_from(plain, (WORDS, GREEDY, 120))[0]
    assert sequence.drafted >= sequence.accepted > 20


def test_a_limit_inside_a_draft_ends_there(plain: Model, eager: Model):
    (expected,) = ids_from(plain, (SUMS,))
    for tokens in range(20, 31, 2):
        generation = submit(eager, SUMS, tokens=tokens)
        assert ids_of(generation) == expected[:tokens]
        end = generation.finished
        assert (end.reason, end.completion_tokens) == (FinishReason.LENGTH, tokens)
    assert Eager.accepted > 20


def test_stop_strings_across_accepted_tokens(plain: Model, eager: Model):
    (expected,) = ids_from(plain, (NUMBERS,))
    text = plain.tokenizer.decode(expected)
    for start in range(len(text) // 2, len(text) // 2 + 20, 4):
        stop = text[start : start + 7]
        got, end = submit(eager, NUMBERS, stop=(stop,)).result(60)
        assert got == text[: text.index(stop)]
        assert (end.reason, end.stop_string) == (FinishReason.STOP_STRING, stop)
        read = plain.tokenizer.decode(expected[: end.completion_tokens])
        assert stop in read and end.completion_tokens <= len(expected)
    assert Eager.accepted > 20


def test_the_end_of_text_inside_a_draft_ends_the_answer(plain: Model, eager: Model, monkeypatch):
    """Any token may be the model's end of text: all of those that a looping text confirms are tried."""
    prompt = with_own_answer(plain, STORY * 2)
    (expected,) = ids_from(plain, (prompt,))
    for ending in sorted(set(expected)):
        monkeypatch.setattr(eager.tokenizer, "eog_ids", frozenset({ending}))
        generation = submit(eager, prompt, ignore_eog=False)
        assert ids_of(generation) == expected[: expected.index(ending)]
        end = generation.finished
        assert (end.reason, end.completion_tokens) == (FinishReason.STOP, expected.index(ending))
    assert Eager.accepted > 5


def test_kv_pressure_changes_no_text(path: Path, plain: Model, monkeypatch):
    monkeypatch.setattr("engine.core.loop.Speculator", Eager)
    asked = [(f"{i}, {i}, {i}, {i}, {i},", GREEDY, 80) for i in range(1, 6)]
    expected = ids_from(plain, *asked)
    with new_engine("auto", kv_budget_bytes=10 * plain.info.kv_bytes_per_token * BLOCK_SIZE) as engine:
        model = engine.load(path)
        assert ids_from(model, *asked) == expected
        assert engine._loop.scheduler.preemptions > 0 and Eager.accepted > 20


def test_cancelling_amid_drafts_leaves_the_others_and_no_block(plain: Model, eager: Model):
    (expected,) = ids_from(plain, (SUMS, GREEDY, 100))
    for _ in range(3):
        stays, goes = submit(eager, SUMS, tokens=100), submit(eager, STORY * 4, tokens=150)
        next(iter(goes.events()))
        goes.cancel()
        assert goes.result(60)[1].reason is FinishReason.CANCELLED
        assert ids_of(stays) == expected
    engine = eager._engine
    deadline = time.monotonic() + 60
    while engine.stats().blocks_used or engine.stats().sequences:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", [CPUOperations, TorchOperations])
def test_a_pass_accepts_what_passes_one_by_one_gave(path: Path, kind: type[TorchOperations]):
    """Drafts right and wrong at every place, at a block's border, beside a row without any."""
    decoder = load_decoder(path, kind(torch.device("cpu"), "float32", "float32", BLOCK_SIZE))

    def start(sequence_id: int) -> tuple[EagerRunner, Sequence, Sequence]:
        runner = EagerRunner(decoder, [20])
        made = []
        for number, length in enumerate((27, 40)):
            prompt = tuple(range(100 + number, 100 + number + length))
            sequence = Sequence(sequence_id + number, 0, Request(prompt, GREEDY), 0.0)
            sequence.block_table = [1 + 4 * number + i for i in range(4)]
            batch = ModelBatch(0, prefill=[PrefillChunk(sequence, 0, length)])
            sequence.token_ids.append(runner.run(batch).ids[sequence.sequence_id])
            sequence.num_computed = length
            made.append(sequence)
        return runner, made[0], made[1]

    def step(runner: EagerRunner, rows: list[Sequence], draft: list[int]) -> int:
        first = rows[0].sequence_id
        result = runner.run(ModelBatch(0, rows, drafts={first: draft} if draft else {}))
        for sequence in rows:
            true = result.accepted.get(sequence.sequence_id, [])
            sequence.token_ids += [*true, result.ids[sequence.sequence_id]]
            sequence.num_computed = len(sequence.token_ids) - 1
        return len(result.accepted.get(first, []))

    runner, one, two = start(1)
    for _ in range(18):
        step(runner, [one, two], [])
    for wrong in (0, 2, 4):
        runner, drafted, beside = start(3)
        while drafted.num_target < one.num_target - 8:
            at = drafted.num_target
            draft = one.token_ids[at : at + 4]
            if wrong < 4:
                draft[wrong] += 1
            assert step(runner, [drafted, beside], draft) == wrong
            assert step(runner, [drafted, beside], []) == 0
        assert drafted.token_ids == one.token_ids[: drafted.num_target]
        assert beside.token_ids == two.token_ids[: beside.num_target]
