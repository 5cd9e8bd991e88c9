"""The pump: nothing is lost, nothing ticks at rest, wake-ups come from any thread."""

import asyncio
import threading

from app.chat.pump import FASTEST, SLOWEST, Pump
from engine import Finished, Request, TextDelta
from tests.support.fakes import FakeEngine, FakeGeneration, FakeModel


def new_generation(number: int = 1) -> FakeGeneration:
    from pathlib import Path

    return FakeGeneration(FakeModel(FakeEngine(), Path("m.gguf"), 100), number, Request((1,)))


async def test_every_event_arrives_in_order_whichever_thread_feeds_it():
    generations = [new_generation(number) for number in range(4)]
    got: dict[int, list] = {g.sequence_id: [] for g in generations}
    pump = Pump(asyncio.get_running_loop(), lambda: None)
    for generation in generations:
        pump.attach(generation, got[generation.sequence_id].extend)

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
    pump.attach(generation, got.extend)
    generation.feed("last words")
    pump.close()
    assert [event.text for event in got] == ["last words"]
