"""A generation that nobody holds any more is cancelled; one that is in use is not."""

import asyncio
import gc
import time

import pytest

from engine.api.request import Action, Event, Finished, FinishReason, Request, SamplingParams, TextDelta
from engine.engine import Engine, Model
from tests.engine.test_engine_lifecycle import in_thread, new_engine
from tests.support.paused import submit_paused
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def engine():
    with new_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def model(engine: Engine, tmp_path_factory) -> Model:
    return engine.load(
        make_tiny(tmp_path_factory.mktemp("models") / "one.gguf", "qwen3", quant="Q8_0", seed=1)
    )


@pytest.fixture
def asked(engine: Engine, monkeypatch) -> list:
    """What became of generations by request; the engine hears it too."""
    seen: list = []
    control = engine._loop.control

    def listening(sequence_id: int, what) -> None:
        seen.append((sequence_id, what))
        control(sequence_id, what)

    monkeypatch.setattr(engine._loop, "control", listening)
    return seen


def request(tokens: int = 20) -> Request:
    return Request(tuple(range(20, 60)), GREEDY, max_tokens=tokens, ignore_eog=True)


def sequences(engine: Engine) -> list:
    return list(engine._loop.scheduler.sequences.values())


def wait_until_idle(engine: Engine, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while sequences(engine):
        assert time.monotonic() < end, "it goes on although nobody can read it"
        time.sleep(0.002)


def test_dropping_the_last_reference_cancels(engine: Engine, model: Model):
    generation, sequence = submit_paused(model, request(400))
    del generation
    wait_until_idle(engine)
    assert sequence.finish_reason is FinishReason.CANCELLED


def test_a_consumer_in_a_circle_is_cancelled_when_it_is_collected(engine: Engine, model: Model):
    class Consumer:
        def __init__(self) -> None:
            self.generation, _ = submit_paused(model, request(400))
            self.me = self

    Consumer()
    assert engine._loop.call(lambda: sequences(engine))
    gc.collect()
    wait_until_idle(engine)


def test_what_is_iterated_or_waited_for_is_not_cancelled(engine: Engine, model: Model, asked: list):
    iterated = model.submit(request()).events()
    gc.collect()
    *pieces, end = iterated
    assert len(pieces) == 20 and isinstance(end, Finished) and end.reason is FinishReason.LENGTH
    assert model.submit(request()).result(60)[1].reason is FinishReason.LENGTH

    async def collect() -> list[Event]:
        return [event async for event in model.submit(request())]

    last = asyncio.run(collect())[-1]
    assert isinstance(last, Finished) and last.reason is FinishReason.LENGTH
    del iterated
    gc.collect()
    assert asked == []


def test_leaving_an_iteration_that_alone_held_it_cancels(engine: Engine, model: Model):
    for event in model.submit(request(400)).events():
        assert isinstance(event, TextDelta)
        break
    wait_until_idle(engine)


def test_a_listener_that_refers_to_it_keeps_it(engine: Engine, model: Model, asked: list):
    ends: list = []

    def consume() -> None:
        generation = model.submit(request())
        generation.set_listener(
            lambda: ends.extend(event for event in generation.poll() if isinstance(event, Finished))
        )

    consume()
    gc.collect()
    wait_until_idle(engine)
    end = time.monotonic() + 60
    while not ends and time.monotonic() < end:
        time.sleep(0.002)
    assert ends[0].reason is FinishReason.LENGTH and asked == []


def test_a_drop_waits_for_no_lock_of_the_engine(engine: Engine, model: Model):
    """As when the garbage is collected in the middle of a post or of a push."""
    made = [model.submit(request(400))]
    stream = made[0].stream

    def drop() -> None:
        with engine._loop._posting, stream._arrived:
            made.clear()

    dropping = in_thread(drop)
    dropping.join(60)
    assert not dropping.is_alive()
    wait_until_idle(engine)


def test_a_drop_after_the_engine_has_closed_is_harmless(model: Model):
    with new_engine() as engine:
        generation = engine.load(model.path).submit(request(400))
    assert generation.result(60)[1].reason is FinishReason.CANCELLED
    del generation
    assert engine._loop._inbox.empty()


def test_dropping_asks_once_and_never_after_the_end(model: Model, asked: list):
    generation = model.submit(request())
    generation.result(60)
    del generation
    assert asked == []
    running = model.submit(request(400))
    number = running.sequence_id
    del running
    assert asked == [(number, Action.CANCEL)]
