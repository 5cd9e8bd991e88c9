"""A sequence says why it ended: what its consumer is told."""

import pytest

from engine.api.request import FinishReason, Request, SamplingParams
from engine.core.output_processor import OutputProcessor
from engine.engine import Model
from engine.tokenizer.tokenizer import Tokenizer
from tests.engine.test_engine_lifecycle import new_engine
from tests.support.paused import submit_paused
from tests.support.tiny_gguf import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = make_tiny(tmp_path_factory.mktemp("models") / "one.gguf", "qwen3", quant="Q8_0", seed=1)
    with new_engine() as engine:
        yield engine.load(file)


def begin(model: Model, tokens: int):
    """A request that waits, and its sequence."""
    greedy = SamplingParams(temperature=0.0)
    return submit_paused(model, Request(tuple(range(20, 60)), greedy, max_tokens=tokens, ignore_eog=True))


def test_cancelled(model: Model):
    generation, sequence = begin(model, 400)
    generation.cancel()
    assert generation.result(60)[1].reason is sequence.finish_reason is FinishReason.CANCELLED


def test_the_limit(model: Model):
    generation, sequence = begin(model, 60)
    generation.resume()
    assert generation.result(60)[1].reason is sequence.finish_reason is FinishReason.LENGTH


def test_an_error_with_its_cause(model: Model, monkeypatch):
    def broken(*_):
        raise ValueError("wet")

    generation, sequence = begin(model, 400)
    monkeypatch.setattr(OutputProcessor, "token", broken)
    generation.resume()
    end = generation.result(60)[1]
    assert end.reason is sequence.finish_reason is FinishReason.ERROR
    assert end.error == sequence.error and "wet" in str(end.error)


def test_a_stop_string_that_the_last_flush_completes(model: Model, monkeypatch):
    """An unfinished character's U+FFFD is the end of the text, and may end a stop string."""
    monkeypatch.setattr(Tokenizer, "token_bytes", lambda self, token_id: b"\xf0")
    request = Request(tuple(range(20, 60)), max_tokens=1, ignore_eog=True, stop=("\ufffd",))
    generation, sequence = submit_paused(model, request)
    generation.resume()
    end = generation.result(60)[1]
    assert end.reason is sequence.finish_reason is FinishReason.STOP_STRING
