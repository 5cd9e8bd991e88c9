"""Consumers that stop early, come twice or vanish; requests that are refused when they are made."""

import asyncio
import threading

import numpy as np
import pytest

from engine.api.errors import RequestError
from engine.api.generation import Generation
from engine.api.request import Finished, FinishReason, Request, SamplingParams, TextDelta
from engine.core.output_processor import OutputProcessor
from engine.scheduler.sequence import Sequence

END = Finished(FinishReason.STOP, None, 1, 0, 1, queue_ms=0.0, ttft_ms=0.0, tok_s=0.0)
PIECES = [TextDelta(letter, (i,)) for i, letter in enumerate("abcdef")]


def filled() -> Generation:
    generation = Generation(1, Request((1,)), lambda _id, _what: None)
    for event in [*PIECES, END]:
        generation.stream.push(event)
    return generation


def test_leaving_an_iteration_early_loses_nothing():
    generation = filled()
    assert next(iter(generation.events())) == PIECES[0]
    for event in generation.events():
        if event == PIECES[2]:
            break
    assert generation.poll() == [*PIECES[3:], END]


def test_leaving_an_asynchronous_iteration_early_loses_nothing():
    generation = filled()

    async def some() -> None:
        async for event in generation:
            if event == PIECES[1]:
                return

    asyncio.run(some())
    assert generation.result(1) == ("cdef", END)


def test_a_second_iteration_is_over_at_once():
    generation = filled()
    assert len(list(generation.events())) == 7
    assert list(generation.events()) == []

    async def collect() -> list:
        return [event async for event in generation]

    assert asyncio.run(asyncio.wait_for(collect(), 2)) == []
    assert generation.result(1) == ("", END)


def test_a_second_waiting_thread_is_released_at_the_end():
    generation = Generation(1, Request((1,)), lambda _id, _what: None)
    threads = [threading.Thread(target=lambda: list(generation.events()), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    generation.stream.push(END)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_cancelled_asynchronous_consumer_leaves_the_rest_to_the_next():
    generation = Generation(1, Request((1,)), lambda _id, _what: None)

    async def scenario() -> list:
        got: list = []

        async def consume() -> None:
            async for event in generation:
                got.append(event)

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        generation.stream.push(PIECES[0])
        while not got:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for event in [*PIECES[1:], END]:
            generation.stream.push(event)
        return got + [event async for event in generation]

    assert asyncio.run(scenario()) == [*PIECES, END]


def test_a_consumer_whose_event_loop_is_gone_does_not_disturb_the_producer(caplog):
    generation = Generation(1, Request((1,)), lambda _id, _what: None)

    async def begin() -> None:
        await asyncio.wait_for(anext(aiter(generation)), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(begin())
    loop = asyncio.new_event_loop()
    generation.set_listener(lambda: loop.call_soon_threadsafe(print))
    loop.close()
    for event in [*PIECES, END]:
        generation.stream.push(event)
    assert generation.result(1) == ("abcdef", END)
    assert "listener of generation 1 failed" in caplog.text


class Letters:
    """A tokenizer of bytes; 255 begins a character that never ends, two are markers."""

    eog_ids = frozenset({0})
    markers = {1: "<|eom|>", 2: "<|end|>"}

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == 254:
            raise ValueError("no such token")
        special = {1: b"", 2: b"<|end|>", 255: b"\xf0\x9f"}
        return special.get(token_id, bytes([token_id]))

    def strip_first(self, piece: bytes) -> bytes:
        return piece


class Answer(OutputProcessor):
    """With the generation that it goes to."""

    def __init__(self, stop=(), limit: int = 100) -> None:
        request = Request((1,), stop=stop)
        sequence = Sequence(1, 1, request, arrival=0.0)
        sequence.limit = limit
        self.generation = Generation(1, request, lambda _id, _what: None)
        super().__init__(sequence, self.generation.stream, Letters())


def ended(made: Answer) -> tuple[str, Finished]:
    return made.generation.result(1)


def test_an_unfinished_character_is_flushed_before_the_end():
    made = Answer()
    made.token(97, 0.0)
    made.token(255, 0.0)
    made.finish(FinishReason.CANCELLED, 1.0)
    text, end = ended(made)
    assert (text, end.reason, end.completion_tokens) == ("a\ufffd", FinishReason.CANCELLED, 2)


def test_text_held_for_a_stop_string_is_flushed_before_the_end():
    made = Answer(stop=("abc",))
    for token in b"xab":
        assert made.token(token, 0.0) is None
    made.finish(FinishReason.LENGTH, 1.0)
    assert ended(made)[0] == "xab"


def test_a_stop_string_that_the_flush_completes_counts_unless_the_sequence_failed():
    for error, reason in ((None, FinishReason.STOP_STRING), ("broken", FinishReason.ERROR)):
        made = Answer(stop=("a\ufffd",))
        made.token(97, 0.0)
        made.token(255, 0.0)
        made.finish(FinishReason.ERROR if error else FinishReason.LENGTH, 1.0, error)
        text, end = ended(made)
        assert (text, end.reason, end.error) == ("", reason, error)


def deltas(made: Answer) -> list[tuple[str, tuple[int, ...], str]]:
    return [(event.text, event.token_ids, event.marker) for event in made.generation.poll()]


def test_tokens_that_part_an_answer_are_told_from_text():
    made = Answer()
    for token in (1, *b"<|eom|>", 2):
        made.token(token, 0.0)
    letters = [(chr(byte), (byte,), "") for byte in b"<|eom|>"]
    assert deltas(made) == [("", (1,), "<|eom|>"), *letters, ("<|end|>", (2,), "<|end|>")]


@pytest.mark.parametrize(("marker", "text"), [(1, ""), (2, "<|end|>")])
def test_text_held_back_comes_before_the_marker_behind_it(marker, text):
    made = Answer(stop=("ab", "a<|end|>b"))
    for token in (*b"xa", marker, *b"b"):
        assert made.token(token, 0.0) is None
    name = Letters.markers[marker]
    assert deltas(made) == [
        ("x", (120,), ""),
        ("", (97,), ""),
        ("a", (), ""),
        (text, (marker,), name),
        ("b", (98,), ""),
    ]


def test_a_stop_string_may_end_with_a_marker():
    made = Answer(stop=("a<|end|>",))
    made.token(97, 0.0)
    assert made.token(2, 0.0) == (FinishReason.STOP_STRING, "a<|end|>")
    assert deltas(made) == [("", (97,), ""), ("", (2,), "")]


def test_an_answer_ends_even_when_its_last_text_cannot_be_decoded(monkeypatch):
    made = Answer()
    made.token(97, 0.0)
    with pytest.raises(ValueError, match="no such"):
        made.token(254, 0.0)

    def broken() -> str:
        raise ValueError("wet")

    monkeypatch.setattr(made._detokenizer, "flush", broken)
    made.finish(FinishReason.ERROR, 1.0, "decoding failed")
    assert ended(made)[1].error == "decoding failed"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"seed": 0.5}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias: 3"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias: 3"),
        ({"logit_bias": {3: 1e30}}, "logit_bias: 3"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: None}}, "logit_bias: 1"),
    ],
)
def test_sampling_that_cannot_be_served_is_refused(options, named: str):
    with pytest.raises(RequestError, match=named):
        SamplingParams(**options)


def test_the_outermost_values_are_served():
    SamplingParams(temperature=1e-6, top_k=1 << 30, top_p=0, min_p=1, seed=(1 << 64) - 1)
    SamplingParams(temperature=np.float32(0.5), seed=np.int64(3), logit_bias={np.int64(3): -float("inf")})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stop": "END"}, "stop: 'END' is not a tuple"),
        ({"stop": (b"x",)}, "stop"),
        ({"stop": ("",)}, "empty stop string"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens: 2.5"),
        ({"priority": "urgent"}, "priority: 'urgent'"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(options, named: str):
    with pytest.raises(RequestError, match=named):
        Request((1,), **options)
