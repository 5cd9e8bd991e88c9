"""Answers that are held to something, in the engine: valid at any temperature, and in nobody's way."""

import json
import threading

import numpy as np
import pytest
import torch

from engine.api.constraint import Constraint, ConstraintError, ConstraintKind
from engine.api.errors import RequestError
from engine.api.request import FinishReason, Request, SamplingParams, TextDelta
from engine.engine import Engine, Model
from tests.support.small_model import KV_BYTES

PROMPT = tuple(range(20, 50))
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy", "zzz"]}, "b": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CONSTRAINT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
EXACT = {"weight_dtype": "float32", "kv_dtype": "float32", "debug": True}
WILD = SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)


@pytest.fixture(scope="module")
def model(small_model):
    with Engine(
        "cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=64 << 20, debug=True
    ) as engine:
        yield engine.load(small_model)


def written(generation) -> tuple[list[int], str, FinishReason]:
    events = [event for event in generation.events() if isinstance(event, TextDelta)]
    ids = [i for event in events for i in event.token_ids]
    return ids, "".join(event.text for event in events), generation.finished.reason


def asked(model: Model, seed: int, **more):
    sampling = SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
    return model.submit(Request(PROMPT, sampling, max_tokens=200, constraint=CONSTRAINT, **more))


def test_every_answer_is_valid_and_that_of_its_seed_alone(model):
    together = [asked(model, seed) for seed in range(6)]
    free = model.submit(Request(PROMPT, WILD, max_tokens=30, ignore_eog=True))
    texts = [written(generation) for generation in together]
    assert len(written(free)[0]) == 30
    for _, text, reason in texts:
        assert reason is FinishReason.LENGTH or set(json.loads(text)) == {"a", "b"}
    assert sum(reason is FinishReason.STOP for *_, reason in texts) >= 4
    assert written(asked(model, 2)) == texts[2]


def test_an_answer_goes_on_from_any_of_its_tokens(model):
    ids, text, reason = written(asked(model, 2))
    half = len(ids) // 2
    going_on = Request(
        (*PROMPT, *ids[:half]),
        SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=2),
        max_tokens=200 - half,
        constraint=CONSTRAINT,
        answered=half,
    )
    assert written(model.submit(going_on)) == (ids, text, reason)


def test_a_mask_that_is_late_holds_its_own_row_alone(model, monkeypatch):
    """Its mask is kept back until the other answer has ended; then its text is what it always is."""
    usual = written(asked(model, 4))
    gate = threading.Event()
    late = []
    from engine.constraints.matcher import Matcher

    begin, compute = Matcher.__init__, Matcher._compute

    def made(matcher, *what):
        late.append(matcher)
        begin(matcher, *what)

    def held_back(matcher):
        # The first answer's own may still compute its last.
        if matcher in late:
            gate.wait(60)
        compute(matcher)

    monkeypatch.setattr(Matcher, "__init__", made)
    monkeypatch.setattr(Matcher, "_compute", held_back)

    def both():
        # On the engine's thread: in one tick, else the first to come would be waited for alone.
        return asked(model, 4), model.submit(Request(PROMPT, WILD, max_tokens=20, ignore_eog=True))

    held, free = model._engine._loop.call(both)
    assert len(written(free)[0]) == 20
    assert held.finished is None and not held.poll()
    gate.set()
    assert written(held) == usual


def test_who_waits_for_memory_and_who_loses_the_device_goes_on_where_it_was(model, small_model):
    """Not all rows have room at once, and the device is lost in between: the texts stay what they are."""
    texts = [written(asked(model, seed)) for seed in range(3)]
    with Engine("cpu", kv_budget_bytes=264 * KV_BYTES, host_kv_bytes=0, **EXACT) as small:
        again = small.load(small_model)
        generations = [asked(again, seed) for seed in range(3)]
        runner = small._loop.models.get(again.id).runner
        run, passes = runner.run, []

        def lost_once(batch):
            passes.append(batch)
            if len(passes) == 9:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return run(batch)

        runner.run = lost_once
        assert [written(generation) for generation in generations] == texts
        assert len(passes) == 9


def test_an_answer_that_nothing_can_go_on_ends_alone(model):
    forbidden = dict.fromkeys(range(model.tokenizer.vocab_size - 1), -np.inf)
    sampling = SamplingParams(logit_bias=forbidden)
    generation = model.submit(Request(PROMPT, sampling, constraint=CONSTRAINT))
    finished = generation.result(60)[1]
    assert finished.reason is FinishReason.ERROR and "held to" in finished.error


def test_what_is_no_constraint_is_refused_before_it_is_queued(model):
    with pytest.raises(ConstraintError, match=r"properties\.a"):
        bad = Constraint(ConstraintKind.JSON_SCHEMA, '{"properties": {"a": {"type": "nothing"}}}')
        model.submit(Request(PROMPT, constraint=bad))
    with pytest.raises(RequestError, match="ignore_eog"):
        Request(PROMPT, constraint=CONSTRAINT, ignore_eog=True)


def test_logprobs_are_those_of_the_raw_logits(model):
    sampling = SamplingParams(temperature=2.0, seed=1, frequency_penalty=1.0, logit_bias={30: 4.0})
    request = Request(PROMPT, sampling, max_tokens=6, ignore_eog=True, top_logprobs=5)
    generation = model.submit(request)
    other = model.submit(Request(PROMPT, sampling, max_tokens=6, ignore_eog=True))
    events = [event for event in generation.events() if isinstance(event, TextDelta) and event.token_ids]
    ids = [event.token_ids[0] for event in events]
    expected = model.logits([*PROMPT, *ids])[len(PROMPT) - 1 : -1].log_softmax(-1)
    for row, event in zip(expected, events, strict=True):
        told = event.logprobs
        assert told.logprob == pytest.approx(float(row[event.token_ids[0]]), abs=1e-4)
        values, likeliest = torch.topk(row, 5)
        assert [token_id for token_id, _ in told.top] == likeliest.tolist()
        assert [value for _, value in told.top] == pytest.approx(values.tolist(), abs=1e-4)
    plain = [event for event in other.events() if isinstance(event, TextDelta)]
    assert [event.token_ids for event in plain] == [event.token_ids for event in events]
    assert all(event.logprobs is None for event in plain)
    assert all(len(event.logprobs.top) == 5 for event in events)


@pytest.mark.parametrize("wrong", [-1, 21, 1.5])
def test_more_logprobs_than_are_told_are_refused(wrong):
    with pytest.raises(RequestError, match="top_logprobs"):
        Request(PROMPT, top_logprobs=wrong)
