"""All answers to one request, as they are written."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from app.serve.log_row import RequestRow
from app.serve.metrics import Metrics
from app.serve.requests.answer import AnswerReader, Ended, Ending, Piece, Said, Thought
from app.serve.requests.port import SequencePort
from app.serve.requests.wakeups import Wakeups
from engine import Finished, TextDelta, ToolCall

CANCELLED = "cancelled"
Closed = Callable[[RequestRow, int], None]


@dataclass(slots=True)
class Stream:
    """One choice on its way."""

    generation: SequencePort
    reader: AnswerReader
    ended: Ended | None = None
    tok_s: float = 0.0
    tokens: int = 0
    last: float | None = None
    """When the last piece of it came."""


@dataclass(slots=True)
class Whole:
    """One answer that has ended."""

    ended: Ended
    thought: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class Answers:
    """The choices of one request; `close` it, however it was read."""

    def __init__(
        self,
        kind: str,
        model: str,
        arrived: float,
        streams: list[Stream],
        choices: int,
        wakeups: Wakeups,
        metrics: Metrics,
        closed: Closed,
    ) -> None:
        """`choices`: so many of the streams, one after the other, have one prompt."""
        self._kind, self._model, self._arrived = kind, model, arrived
        self._streams, self._wakeups, self._metrics = streams, wakeups, metrics
        self._choices = choices
        self._closed: Closed | None = closed
        self._first_ms: float | None = None

    @property
    def count(self) -> int:
        """How many choices there are."""
        return len(self._streams)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(len(stream.generation.request.prompt_ids) for stream in self._streams) // self._choices

    async def __aiter__(self) -> AsyncIterator[tuple[int, list[Piece]]]:
        """What comes, by the number of its choice, until all have ended."""
        ready = asyncio.Event()
        for stream in self._streams:
            stream.generation.set_listener(lambda: self._wakeups.wake(ready))
        while any(stream.ended is None for stream in self._streams):
            await ready.wait()
            ready.clear()
            for index, stream in enumerate(self._streams):
                if stream.ended is None and (pieces := self._take(stream)):
                    yield index, pieces

    async def whole(self) -> list[Whole]:
        """Every choice once all have ended."""
        found = [Whole(Ended(Ending.FAILED)) for _ in self._streams]
        async for index, pieces in self:
            whole = found[index]
            for piece in pieces:
                if isinstance(piece, Thought):
                    whole.thought += piece.text
                elif isinstance(piece, Said):
                    whole.text += piece.text
                elif isinstance(piece, Ended):
                    whole.ended = piece
                else:
                    whole.calls.append(piece)
        return found

    def close(self) -> None:
        """Cancel what has not ended, and tell what the request cost."""
        closed, self._closed = self._closed, None
        if closed is None:
            return
        for stream in self._streams:
            if stream.ended is None:
                stream.generation.set_listener(None)
                stream.generation.cancel()
                self._metrics.cancelled()
        closed(self._row(), len(self._streams))

    def _take(self, stream: Stream) -> list[Piece]:
        pieces: list[Piece] = []
        events = stream.generation.poll()
        tokens = sum(len(event.token_ids) for event in events if isinstance(event, TextDelta))
        if tokens:
            self._measure(stream, tokens)
        for event in events:
            if isinstance(event, Finished):
                self._end(stream, event)
            if not stream.reader.over or isinstance(event, Finished):
                _append(pieces, stream.reader.take(event))
        if stream.reader.over and stream.generation.finished is None:
            stream.generation.cancel()
        if pieces and isinstance(pieces[-1], Ended):
            stream.ended = pieces[-1]
        return pieces

    def _measure(self, stream: Stream, tokens: int) -> None:
        now = time.perf_counter()
        stream.tokens += tokens
        self._metrics.tokens(tokens)
        if stream.last is not None:
            self._metrics.gap(now - stream.last)
        else:
            self._metrics.first_token(now - self._arrived)
            if self._first_ms is None:
                self._first_ms = (now - self._arrived) * 1000
        stream.last = now

    def _end(self, stream: Stream, finished: Finished) -> None:
        stream.tok_s = finished.tok_s
        self._metrics.ended(finished, str(finished.reason), time.perf_counter() - self._arrived)

    def _row(self) -> RequestRow:
        ended = [stream.ended for stream in self._streams if stream.ended is not None]
        whole = len(ended) == len(self._streams)
        return RequestRow(
            self._kind,
            self._model,
            self.prompt_tokens,
            max((one.cached_tokens for one in ended), default=0),
            self._first_ms,
            sum(stream.tokens for stream in self._streams),
            sum(stream.tok_s for stream in self._streams),
            "+".join(dict.fromkeys(one.ending for one in ended)) if whole else CANCELLED,
        )


def _append(pieces: list[Piece], more: list[Piece]) -> None:
    """Put pieces behind others, texts of one kind together: who is late gets fewer of them."""
    for piece in more:
        last = pieces[-1] if pieces else None
        if isinstance(piece, Said) and isinstance(last, Said):
            pieces[-1] = Said(last.text + piece.text)
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            pieces[-1] = Thought(last.text + piece.text)
        else:
            pieces.append(piece)
