"""One sequence's way from token ids to text events: detokenizer, stop strings, rates."""

import logging
from collections import deque
from collections.abc import Callable, Mapping

from engine.api.errors import EngineError
from engine.api.event_stream import EventStream
from engine.api.request import Finished, FinishReason, TextDelta, TokenLogprobs
from engine.device.faults import describe
from engine.runner.sampler import Sampled
from engine.scheduler.sequence import Sequence
from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.stops import StopMatcher
from engine.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)

RATE_WINDOW = 1.0
"""Seconds over which speeds are taken."""


class RateMeter:
    """Events per second over the last second."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque()
        self._count = 0

    def add(self, now: float, count: int = 1) -> None:
        """Record `count` events at `now` (seconds)."""
        self._times.append((now, count))
        self._count += count
        self._drop(now)

    def rate(self, now: float) -> float:
        """Events per second."""
        self._drop(now)
        return self._count / RATE_WINDOW

    def _drop(self, now: float) -> None:
        while self._times and self._times[0][0] < now - RATE_WINDOW:
            self._count -= self._times.popleft()[1]


class OutputProcessor:
    """Turns one sequence's sampled ids into events of its stream."""

    def __init__(self, sequence: Sequence, stream: EventStream, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self._stream = stream
        self.rate = RateMeter()
        self._eog_ids = frozenset() if sequence.request.ignore_eog else tokenizer.eog_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._stops = StopMatcher(sequence.request.stop)
        self._last_token_at = 0.0
        self._delivered = 0

    def begin(self) -> None:
        """Deliver the beginning of an answer that this sequence continues, as when it was sampled."""
        ids = self.sequence.request.prompt_ids[self.sequence.answer_start :]
        for token_id in ids:
            text = self._detokenizer.push(token_id)
            marker = self._tokenizer.markers.get(token_id, "")
            if marker:
                text = self._part_at_marker(text, token_id)
            self._stream.push(TextDelta(text, (token_id,), marker))

    def token(
        self, token_id: int, now: float, logprobs: TokenLogprobs | None = None
    ) -> tuple[FinishReason, str | None] | None:
        """Deliver one sampled id; returns why the sequence is over (with the stop string), or None."""
        if self._stream.cancelled:
            return FinishReason.CANCELLED, None
        if token_id in self._eog_ids:
            return FinishReason.STOP, None
        text, stop = self._stops.push(self._detokenizer.push(token_id))
        self._delivered += 1
        self._last_token_at = now
        self.rate.add(now)
        marker = self._tokenizer.markers.get(token_id, "") if stop is None else ""
        if marker:
            text = self._part_at_marker(text, token_id)
        self._stream.push(TextDelta(text, (token_id,), marker, logprobs))
        if stop is not None:
            return FinishReason.STOP_STRING, stop
        # Not `at_limit`: the sequence may have got more tokens than were delivered yet.
        if self.sequence.prompt_len + self._delivered >= self.sequence.limit:
            return FinishReason.LENGTH, None
        return None

    def _part_at_marker(self, text: str, token_id: int) -> str:
        """Deliver what stands in front of a marker, beyond which no stop string goes; return its own text."""
        text += self._stops.flush()
        own = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        if len(text) > len(own):
            self._stream.push(TextDelta(text[: len(text) - len(own)], ()))
        return own

    @property
    def delivered(self) -> int:
        """Ids that the consumer has got."""
        return self._delivered

    def end_text(
        self, reason: FinishReason, error: str | None = None, stop: str | None = None
    ) -> tuple[FinishReason, str | None]:
        """Deliver text held back, whatever it does; returns why the sequence ends then, and the stop string.

        The text's end may complete a stop string; an error stays the reason.
        """
        if stop is not None:
            return reason, stop
        try:
            text, stop = self._rest()
        except Exception:
            log.exception("the end of the text of sequence %s is lost", self.sequence.sequence_id)
            text = ""
        if text:
            self._stream.push(TextDelta(text, ()))
        return (FinishReason.STOP_STRING if stop is not None and error is None else reason), stop

    def finish(
        self, reason: FinishReason, now: float, error: str | None = None, stop: str | None = None
    ) -> None:
        """End the text, then push the `Finished` event."""
        if self._stream.finished is not None:
            raise EngineError(f"sequence {self.sequence.sequence_id} would finish twice")
        reason, stop = self.end_text(reason, error, stop)
        self._stream.push(self._summary(reason, now, error, stop))

    def _rest(self) -> tuple[str, str | None]:
        """Text held back so far, and the stop string that an unfinished character completed."""
        text, stop = self._stops.push(self._detokenizer.flush())
        return (text, stop) if stop is not None else (text + self._stops.flush(), None)

    def _summary(self, reason: FinishReason, now: float, error: str | None, stop: str | None) -> Finished:
        sequence = self.sequence
        first = sequence.first_token_at
        seconds = self._last_token_at - first if first is not None else 0.0
        started = sequence.admitted_at if sequence.admitted_at is not None else now
        return Finished(
            reason=reason,
            error=error,
            prompt_tokens=sequence.prompt_len,
            cached_tokens=sequence.cached_tokens,
            completion_tokens=self._delivered,
            queue_ms=(started - sequence.arrival) * 1e3,
            ttft_ms=None if first is None else (first - sequence.arrival) * 1e3,
            tok_s=(self._delivered - 1) / seconds if self._delivered > 1 and seconds > 0 else 0.0,
            stop_string=stop,
            saved_ms=sequence.saved_ms,
        )


EndSequence = Callable[[Sequence, FinishReason, str | None, str | None], None]
"""Ends a sequence with its reason, its error and the stop string that was met."""


def deliver(sampled: Sampled, outputs: Mapping[int, OutputProcessor], now: float, end: EndSequence) -> None:
    """Give every sequence its drafts that were accepted and its sampled id; end what they complete."""
    for sequence_id, last_id in sampled.ids.items():
        for token_id in (*sampled.accepted.get(sequence_id, ()), last_id):
            # Looked up for each token: what lies behind the one that ends a sequence is dropped.
            output = outputs.get(sequence_id)
            if output is not None:
                _deliver_one(output, token_id, sampled.logprobs.get(sequence_id), now, end)


def _deliver_one(
    output: OutputProcessor, token_id: int, logprobs: TokenLogprobs | None, now: float, end: EndSequence
) -> None:
    try:
        over = output.token(token_id, now, logprobs)
    except Exception as error:
        log.exception("delivering a token failed")
        end(output.sequence, FinishReason.ERROR, f"decoding the text failed: {describe(error)}", None)
        return
    if over is not None:
        reason, stop = over
        end(output.sequence, reason, None, stop)


def never_started(sequence: Sequence, error: str) -> Finished:
    """The only event of a request that was refused after it was handed over."""
    return Finished(
        FinishReason.ERROR, error, sequence.prompt_len, 0, 0, queue_ms=0.0, ttft_ms=None, tok_s=0.0
    )
