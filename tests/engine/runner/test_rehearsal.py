"""What nobody waits for is recorded and timed before it is asked for, and changes nothing else."""

import time
from collections.abc import Iterator

import pytest
import torch

from engine.api.request import Request, SamplingParams
from engine.engine import Engine
from engine.runner.eager_runner import EagerRunner
from engine.runner.recorded import rehearsal
from tests.support.tiny_gguf import make_tiny

SHAPE = {"quant": "Q4_K", "layers": 2, "width": 256, "ffn": 256, "heads": 4, "kv_heads": 2, "head_dim": 64}
STARTS = (3, 20)
"""Tokens of two chats' prompts."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine("cpu", kv_budget_bytes=8 << 20, speculation="off") as engine:
        yield engine


@pytest.fixture
def path(tmp_path):
    return make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE)


def runner_of(engine: Engine, model) -> EagerRunner:
    runner = engine._loop.call(lambda: engine._loop.models.get(model._key).runner)
    assert isinstance(runner, EagerRunner)
    return runner


def rehearsed(model) -> None:
    while model.compiling():
        time.sleep(0.005)


def answers(model) -> list[str]:
    prompts = [tuple(range(20 + index, 20 + index + tokens)) for index, tokens in enumerate(STARTS)]
    options = {"max_tokens": 12, "ignore_eog": True}
    asked = [model.submit(Request(prompt, SamplingParams(temperature=0.0), **options)) for prompt in prompts]
    return [answer.result(60)[0] for answer in asked]


@pytest.fixture
def held(monkeypatch) -> pytest.MonkeyPatch:
    """Nothing is rehearsed until this is undone."""
    monkeypatch.setattr(EagerRunner, "idle_work", lambda _: False)
    return monkeypatch


def test_ticks_find_what_they_would_record(engine, path, monkeypatch):
    monkeypatch.setattr(rehearsal, "LONG_MS", 1e6)
    monkeypatch.setattr("kernels.cpu.operations.fit_team", lambda: None)
    model = engine.load(path)
    rehearsed(model)
    recorded = runner_of(engine, model).recorded
    assert recorded is not None
    shapes = {(shape.decode, shape.chunk) for shape in recorded._recorded}
    assert shapes == set(rehearsal._shapes())
    answers(model)
    decode_only = [tick for tick in engine.tick_log() if tick.rows and not tick.chunk_tokens]
    assert decode_only and not any("first run" in tick.done for tick in decode_only)


def test_what_passes_take_is_known_before_the_first_prompt(engine, path, monkeypatch):
    monkeypatch.setattr(rehearsal, "LONG_MS", 1e6)
    model = engine.load(path)
    rehearsed(model)
    assert engine._loop.call(lambda: engine._loop.scheduler.cost.has_read(model._key))
    assert not runner_of(engine, model).notes.timings, "each is learned once"


def test_kept_contexts_and_answers_stay_as_they_are(engine, path, held):
    model = engine.load(path)
    first = answers(model)
    runner = runner_of(engine, model)

    def kept() -> list[torch.Tensor]:
        pages = range(1, 10)
        return [piece.clone() for page in pages for piece in runner.kv.pieces(0, page)]

    before = engine._loop.call(kept)
    held.undo()
    engine._loop.call(lambda: None)
    rehearsed(model)
    assert all(map(torch.equal, before, engine._loop.call(kept)))
    assert answers(model) == first


def test_slow_models_keep_nobody_waiting(engine, path, monkeypatch):
    monkeypatch.setattr(rehearsal, "LONG_MS", 0.0)
    model = engine.load(path)
    rehearsed(model)
    recorded = runner_of(engine, model).recorded
    assert recorded is not None and not recorded._recorded


def test_what_cannot_be_recorded_is_not_run_again_and_again(engine, path, held):
    model = engine.load(path)
    runner = runner_of(engine, model)
    passes, forward = [], runner.decoder.forward
    runner.recorded.logits = lambda *_: None
    runner.decoder.forward = lambda *args: passes.append(forward(*args))
    held.undo()
    engine._loop.call(lambda: None)
    rehearsed(model)
    assert len(passes) == 2


def test_a_failure_is_logged_and_ends_it(engine, path, held, caplog):
    model = engine.load(path)
    recorded = runner_of(engine, model).recorded
    assert recorded is not None
    own = recorded.logits

    def fails(*_args):
        raise RuntimeError("no such kernel")

    recorded.logits = fails
    held.undo()
    held.setattr(rehearsal, "LONG_MS", 1e6)
    engine._loop.call(lambda: None)
    rehearsed(model)
    assert "rehearsing passes failed" in caplog.text
    recorded.logits = own
    assert all(answers(model))


def test_blocks_of_few_tokens_hold_every_pass():
    for rows, chunk in rehearsal._shapes():
        packed = rehearsal._pass(rows, chunk, 16, 2)
        layout = packed.layouts[1]
        assert max(layout.slot_mapping.tolist()) < 16
        ends = zip(layout.block_tables, layout.context_lens, strict=True)
        assert all(16 * len(table) >= end for table, end in ends)
        assert len(packed.ids) == sum(layout.query_lens) == len(layout.positions)
