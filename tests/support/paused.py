"""Requests that wait from their first tick on, however slow the test's own thread is."""

from engine.api.generation import Generation
from engine.api.request import Request
from engine.engine import Model
from engine.scheduler.sequence import Sequence


def submit_paused(model: Model, request: Request) -> tuple[Generation, Sequence]:
    """A request that is paused before a tick has seen it, and its sequence, the only one of its engine."""
    loop = model._engine._loop

    def begin() -> Generation:
        # What is posted on the engine's thread is handled together.
        generation = model.submit(request)
        generation.pause()
        return generation

    generation = loop.call(begin)
    (sequence,) = loop.call(lambda: list(loop.scheduler.sequences.values()))
    return generation, sequence
