"""The stream handle between the engine's thread and its consumer."""

import gc
import sys
import threading
import weakref

import pytest

from engine.api.generation import Generation
from engine.api.request import Action, Finished, FinishReason, Priority, Request, TextDelta

END = Finished(FinishReason.STOP, None, 1, 0, 1, queue_ms=0.0, ttft_ms=0.0, tok_s=0.0)


@pytest.fixture
def eager_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def push_fifty(generation: Generation) -> None:
    for _ in range(50):
        generation.stream.push(TextDelta("x", (1,)))
    generation.stream.push(END)


def test_no_wake_up_is_lost(eager_switching):
    for _ in range(60):
        generation = Generation(1, Request((1,)), lambda _id, _what: None)
        wake = threading.Event()
        generation.set_listener(wake.set)
        producer = threading.Thread(target=push_fifty, args=(generation,))
        producer.start()
        received = 0
        while received < 51:
            assert wake.wait(60), f"no wake-up although {51 - received} events are to come"
            wake.clear()
            received += len(generation.poll())
        producer.join()


def test_the_result_waits_and_times_out():
    generation = Generation(1, Request((1,)), lambda _id, _what: None)
    with pytest.raises(TimeoutError):
        generation.result(0.01)
    generation.stream.push(TextDelta("he", (1,)))
    assert generation.poll() == [TextDelta("he", (1,))]
    generation.stream.push(TextDelta("llo", (2,)))
    generation.stream.push(END)
    assert generation.result(1) == ("llo", END)


def test_after_the_end_nobody_is_asked():
    asked: list[tuple[int, Action | Priority]] = []
    generation = Generation(7, Request((1,)), lambda sequence_id, what: asked.append((sequence_id, what)))
    generation.pause()
    generation.resume()
    generation.set_priority(Priority.LOW)
    generation.cancel()
    before = [(7, Action.PAUSE), (7, Action.RESUME), (7, Priority.LOW), (7, Action.CANCEL)]
    assert asked == before
    generation.stream.push(END)
    generation.cancel()
    generation.pause()
    assert asked == before


def test_an_ended_generation_goes_without_a_garbage_collection():
    class Consumer:
        def __init__(self) -> None:
            self.generation = Generation(1, Request((1,)), lambda _id, _what: None)
            self.generation.set_listener(self.take)

        def take(self) -> None:
            self.generation.poll()

    consumer = Consumer()
    gone = weakref.ref(consumer.generation)
    consumer.generation.stream.push(END)
    gc.disable()
    try:
        del consumer
        assert gone() is None
    finally:
        gc.enable()


def test_a_listener_that_comes_after_the_end_is_called_and_not_kept():
    generation = Generation(1, Request((1,)), lambda _id, _what: None)
    generation.stream.push(END)
    called: list[int] = []

    def listener() -> None:
        called.append(1)

    generation.set_listener(listener)
    assert called == [1]
    gone = weakref.ref(listener)
    del listener
    assert gone() is None
