"""Rows that are held to something, or ask for log-probabilities, beside one that does neither."""

from collections.abc import Iterator

import pytest
import torch

import engine.core.device_choice as facade
from engine.api.constraint import Constraint, ConstraintKind
from engine.api.request import Request, SamplingParams, TextDelta
from engine.engine import Engine
from engine.runner import apart, cuda_graph, graph_runner
from kernels.triton_operations import TritonOperations
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0, logit_bias={70: 0.5})
DIGITS = Constraint(ConstraintKind.REGEX, "[0-9]{2}")
FREE = Request((20, 21, 22), SamplingParams(temperature=0.0), max_tokens=3, ignore_eog=True)
HELD = Request((30, 31), GREEDY, constraint=DIGITS, top_logprobs=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return make_tiny(made, "qwen3", quant="F16", seed=5, layers=1)


@pytest.fixture(scope="module")
def model(device, path) -> Iterator:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facade, "operations_for", lambda *_: TritonOperations(torch.device(device), "auto"))
        engine = Engine("cpu", kv_budget_bytes=64 << 20, debug=True)
    with pytest.MonkeyPatch.context() as patch, engine:
        if device == "cpu":
            for name, sizes in (("PASS_TOKENS", (8, 16, 64)), ("MIXED_ROWS", (0, 3)), ("CHUNKS", (2, 4))):
                patch.setattr(cuda_graph, name, sizes)
            patch.setattr(graph_runner, "FIRST_SIZES", ())
            patch.setattr(graph_runner, "WARM_SIZES", ())
        yield engine.load(path)


@pytest.fixture(scope="module")
def expected(path):
    """What the processor answers, each by itself."""
    with Engine("cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=64 << 20) as engine:
        plain = engine.load(path)
        return [told(plain.submit(request)) for request in (FREE, HELD)]


def told(generation) -> tuple[str, list]:
    events = [event for event in generation.events() if isinstance(event, TextDelta)]
    assert generation.finished.error is None
    return "".join(event.text for event in events), [event.logprobs for event in events if event.token_ids]


def test_each_row_is_chosen_as_by_the_processor(model, expected, monkeypatch):
    """Masks that come late hold their row for a tick, at its prompt's end and later."""
    late = iter((True, False, True))

    def wait(sequences, busy):
        held = apart_wait(sequences, lambda: True)
        waiting = {one.sequence_id for one in sequences if one.matcher is not None}
        return held | (waiting if waiting and next(late, False) else set())

    apart_wait = apart.wait_for_masks
    monkeypatch.setattr(apart, "wait_for_masks", wait)
    generations = [model.submit(FREE), model.submit(HELD)]
    (free, _), (held, logprobs) = [told(generation) for generation in generations]
    assert (free, held) == (expected[0][0], expected[1][0]) and held.isdigit() and len(held) == 2
    for mine, theirs in zip(logprobs, expected[1][1], strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=0.02)
        assert [value for _, value in mine.top] == pytest.approx([v for _, v in theirs.top], abs=0.02)
    runner = model._engine._loop.models.get(model.id).runner
    assert {chosen_apart for _, chosen_apart in runner._passes} >= {True}
