"""One choice as the engine writes it: its events, and where its thoughts have had their budget their end."""

from collections.abc import Callable
from dataclasses import dataclass

from app.models.backends.thoughts import going_on
from app.serve.requests.answer import AnswerReader, Ended, Ending, Piece
from app.serve.requests.port import SequencePort, ServedModel
from engine import EngineError, Event, Finished, Prompt, TextDelta


@dataclass(frozen=True, slots=True)
class Budget:
    """Of the thoughts in front of an answer."""

    tokens: int
    prompt: Prompt
    model: ServedModel


class Stream:
    """One choice on its way."""

    def __init__(self, generation: SequencePort, reader: AnswerReader, budget: Budget | None = None) -> None:
        self.generation, self.reader = generation, reader
        self.prompt_tokens = len(generation.request.prompt_ids)
        self.ended: Ended | None = None
        self.tok_s = 0.0
        self.tokens = 0
        """Of the answer so far."""
        self.last: float | None = None
        """When the last piece of it came."""
        self._budget = budget
        self._ids: list[int] = []
        self._again = 0
        """Ids that come a second time."""
        self._before: SequencePort | None = None
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called when something has come."""
        self._listener = listener
        self.generation.set_listener(listener)

    def cancel(self) -> None:
        """End it."""
        self.generation.set_listener(None)
        self.generation.cancel()

    def take(self) -> tuple[list[Piece], int, Finished | None]:
        """What has come: pieces, how many tokens, and the last event."""
        pieces: list[Piece] = []
        before = self.tokens
        for event in self.generation.poll():
            if isinstance(event, TextDelta):
                if self._again:
                    self._again -= len(event.token_ids)
                    continue
                pieces += self._delta(event)
                if self._had_its_budget:
                    pieces += self._end_thoughts()
                    break
            else:
                pieces += self._finish(event)
                return pieces, self.tokens - before, event
        return pieces, self.tokens - before, None

    def _delta(self, delta: TextDelta) -> list[Piece]:
        self.tokens += len(delta.token_ids)
        if self._budget is not None:
            self._ids += delta.token_ids
        return [] if self.reader.over else self.reader.take(delta)

    @property
    def _had_its_budget(self) -> bool:
        budget = self._budget
        return budget is not None and self.reader.thinking and self.reader.thought_tokens >= budget.tokens

    def _end_thoughts(self) -> list[Piece]:
        """Put the end of the thoughts behind them, and go on; nothing of them that comes later counts."""
        budget, self._budget = self._budget, None
        assert budget is not None
        pieces = [piece for delta in budget.prompt.ending for piece in self.reader.take(delta)]
        self._ids += [token_id for delta in budget.prompt.ending for token_id in delta.token_ids]
        self.tokens = len(self._ids)
        request = going_on(self.generation.request, budget.prompt.ids, self._ids)
        self.cancel()
        try:
            self._before, self.generation = self.generation, budget.model.submit(request)
        except EngineError as error:
            return [*pieces, Ended(Ending.FAILED, error=str(error))]
        self._again = len(self._ids)
        if self._listener is not None:
            self.generation.set_listener(self._listener)
        return pieces

    def _finish(self, finished: Event) -> list[Piece]:
        assert isinstance(finished, Finished)
        first = None if self._before is None else self._before.finished
        cached = finished.cached_tokens if first is None else first.cached_tokens
        return self.reader.finish(finished, self.prompt_tokens, cached, self.tokens)
