"""Reading a running answer to its end where nothing else waits for it: in commands, without a pump."""

from collections.abc import Generator, Iterator
from typing import Protocol, cast

from app.chat.answers.running import Interruption, RunningAnswer
from app.chat.reasoning import Pieces
from engine import Event, Finished


class Waiting(Protocol):
    """A stream that can be waited for."""

    def events(self) -> Iterator[Event]:
        """Iterate until the `Finished` event, waiting for each."""


def read_answer(running: RunningAnswer) -> Generator[Pieces, None, Finished]:
    """Yield new pieces until the answer has ended, its thoughts when they have had their budget; return how.

    An answer that repeats itself is cancelled, and what comes of it after that is dropped.
    """
    while True:
        for event in cast("Waiting", running.generation).events():
            if isinstance(event, Finished):
                return event
            if running.interruption is not None:
                continue
            pieces, interruption = running.take([event])
            yield pieces
            if interruption is Interruption.BUDGET:
                yield running.end_thoughts()
                break
            if interruption is not None:
                running.generation.cancel()
