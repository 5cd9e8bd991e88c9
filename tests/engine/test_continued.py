"""A request that goes on with an answer: the same ids and the same text as if it had never stopped."""

import pytest

from engine.api.errors import RequestError
from engine.api.request import Request, SamplingParams, TextDelta
from engine.engine import Engine, Model

PROMPT = tuple(range(20, 70))
SAMPLING = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7, frequency_penalty=1.5)
TOKENS = 30


@pytest.fixture(scope="module")
def model(small_model):
    with Engine("cpu", weight_dtype="float32", kv_budget_bytes=64 << 20, debug=True) as engine:
        yield engine.load(small_model)


def written(model: Model, request: Request) -> tuple[list[int], str]:
    events = [event for event in model.submit(request).events() if isinstance(event, TextDelta)]
    return [i for event in events for i in event.token_ids], "".join(event.text for event in events)


@pytest.mark.parametrize("stopped", [1, 13, 29])
def test_an_answer_goes_on_as_if_it_had_not_stopped(model, stopped):
    ids, text = written(model, Request(PROMPT, SAMPLING, max_tokens=TOKENS, ignore_eog=True))
    going_on = Request(
        (*PROMPT, *ids[:stopped]),
        SAMPLING,
        max_tokens=TOKENS - stopped,
        ignore_eog=True,
        answered=stopped,
    )
    assert written(model, going_on) == (ids, text)


def test_its_beginning_is_known_already(model):
    ids, _ = written(model, Request(PROMPT, SAMPLING, max_tokens=TOKENS, ignore_eog=True))
    prompt = (*PROMPT, *ids[:20])
    generation = model.submit(Request(prompt, SAMPLING, max_tokens=2, ignore_eog=True, answered=20))
    finished = generation.result(60)[1]
    size = model._engine.stats().block_size
    assert finished.cached_tokens == (len(prompt) - 1) // size * size
    assert finished.completion_tokens == 2, "what came again was not generated"


@pytest.mark.parametrize("answered", [-1, len(PROMPT) + 1, 1.5])
def test_a_beginning_that_cannot_be_is_refused(answered):
    with pytest.raises(RequestError, match="answered"):
        Request(PROMPT, answered=answered)
