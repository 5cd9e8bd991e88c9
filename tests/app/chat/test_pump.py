"""The pump: nothing is lost, nothing ticks at rest, wake-ups come from any thread."""

import asyncio
import threading

import pytest

from app.chat.pump import FASTEST, SLOWEST, Pump
from engine import Event, Finished, Request, TextDelta
from tests.support.fakes import FakeEngine, FakeGeneration, FakeModel


def new_generation(number: int = 1) -> FakeGeneration:
    from pathlib import Path

    return FakeGeneration(FakeModel(FakeEngine(), Path("m.gguf"), 100), number, Request((1,)))


def fail(error: Exception) -> None:
    raise AssertionError("nothing was to break") from error


async def test_every_event_arrives_in_order_whichever_thread_feeds_it():
    generations = [new_generation(number) for number in range(4)]
    got: dict[int, list] = {g.sequence_id: [] for g in generations}
    pump = Pump(asyncio.get_running_loop(), lambda: None)
    for generation in generations:
        pump.attach(generation, got[generation.sequence_id].extend, fail)

    def feed() -> None:
        for number in range(500):
            for generation in generations:
                generation.feed(f"{number} ")
        for generation in generations:
            generation.finish()

    thread = threading.Thread(target=feed)
    thread.start()
    async with asyncio.timeout(60):
        while not all(events and isinstance(events[-1], Finished) for events in got.values()):
            await asyncio.sleep(0.01)
    thread.join()
    wanted = "".join(f"{number} " for number in range(500))
    for events in got.values():
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == wanted
    async with asyncio.timeout(60):
        while pump._timer is not None:
            await asyncio.sleep(0.01)


async def test_it_slows_down_when_showing_costs_more_than_a_fifth():
    pump = Pump(asyncio.get_running_loop(), lambda: None)
    assert pump.interval == FASTEST
    pump._cost = 0.04
    assert round(pump.interval, 6) == 0.2
    pump._cost = 9.0
    assert pump.interval == SLOWEST


async def test_closing_delivers_what_waits():
    generation, got = new_generation(), []
    pump = Pump(asyncio.get_running_loop(), lambda: None)
    pump.attach(generation, got.extend, fail)
    generation.feed("last words")
    pump.close()
    assert [event.text for event in got] == ["last words"]


@pytest.mark.parametrize("telling", ["heard", "fails too"])
async def test_a_sink_that_raises_is_given_nothing_more_and_the_others_go_on(telling):
    broken, fine = new_generation(1), new_generation(2)
    errors: list[Exception] = []
    got: list[Event] = []
    done = asyncio.Event()

    def sink(events: list[Event]) -> None:
        raise KeyError("no such widget")

    def tell(error: Exception) -> None:
        errors.append(error)
        if telling == "fails too":
            raise error

    def take(events: list[Event]) -> None:
        got.extend(events)
        if isinstance(events[-1], Finished):
            done.set()

    pump = Pump(asyncio.get_running_loop(), lambda: None)
    pump.attach(broken, sink, tell)
    pump.attach(fine, take, fail)
    for number in range(20):
        broken.feed(f"{number} ")
        fine.feed(f"{number} ")
        await asyncio.sleep(0)
    broken.finish()
    fine.finish()
    async with asyncio.timeout(30):
        await done.wait()
    assert "".join(e.text for e in got if isinstance(e, TextDelta)) == "".join(f"{n} " for n in range(20))
    assert [type(error) for error in errors] == [KeyError]
    assert broken._listener is None and not pump._streams


async def test_numbers_that_cannot_be_shown_do_not_hold_up_text():
    generation, done = new_generation(), asyncio.Event()

    def show() -> None:
        raise ValueError("no such line")

    def take(events: list[Event]) -> None:
        if isinstance(events[-1], Finished):
            done.set()
        elif not generation.finished:
            # Before the last is shown: nothing wakes the pump but itself.
            loop.call_soon(generation.finish)
            generation._events.append(TextDelta("x", (1,)))

    loop = asyncio.get_running_loop()
    pump = Pump(loop, show)
    pump.attach(generation, take, fail)
    generation.feed("text")
    async with asyncio.timeout(30):
        await done.wait()
