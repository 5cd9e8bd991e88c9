"""One engine whose passes can be made to fail, and answers that are compared with a clean run's."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.api.generation import Generation
from engine.api.request import Event, Finished, FinishReason, Request, SamplingParams, TextDelta
from engine.core.model_loader import ResidentModel
from engine.engine import Engine, Model
from engine.runner.sampler import Sampled
from engine.scheduler.plan import ModelBatch
from engine.templates.chat_template import Message

CHUNK = 32
"""Tokens read per tick while nobody decodes."""
TOKENS = 20
WAIT = 60.0
VICTIM = "clouds"
SUBJECTS = ("rivers", "birds", "stars", "bread")
LONG = "Read this first. " + " ".join(
    f"The {word} is number {i} of them." for i, word in enumerate("abcdefghij")
)
Hook = Callable[[ModelBatch], None]


class Tap:
    """A runner that calls `before` with every pass, which may raise, and `after` with what it gave."""

    def __init__(self, real: Any, *, keep: bool = True) -> None:
        self.real = real
        self.keep = keep
        self.passes: list[ModelBatch] = []
        self.before: Hook = lambda batch: None
        self.after: Callable[[ModelBatch, Sampled], None] = lambda batch, sampled: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run(self, batch: ModelBatch) -> Sampled:
        if self.keep:
            self.passes.append(batch)
        self.before(batch)
        sampled = self.real.run(batch)
        self.after(batch, sampled)
        return sampled


class FaultBench:
    """Answers to four subjects, greedy and drawn, alone in a clean engine and then beside faults."""

    def __init__(self, path: Path, **options: Any) -> None:
        # Prompts are read quickly beside answers: a victim is there while others still answer.
        paces = {"max_prefill_tokens": CHUNK, "tick_factor": 6.0}
        defaults = {"kv_budget_bytes": 64 << 20, "threads": 1, "debug": True} | paces
        self.path = path
        self.engine = Engine("cpu", weight_dtype="float32", kv_dtype="float32", **(defaults | options))
        self.model: Model = self.engine.load(path)
        self.expected = {subject: self.ids(self.submit(subject)) for subject in SUBJECTS}

    @property
    def resident(self) -> ResidentModel:
        return self.on_thread(lambda: self.engine._loop.models.get(self.model._key))

    def on_thread(self, work: Callable[[], Any]) -> Any:
        """Run between two ticks."""
        return self.engine._loop.call(work)

    def forget_prefixes(self) -> None:
        """Keep no KV of answers that have ended."""
        self.on_thread(self.engine._loop.models.make_room)

    def tap(self) -> Tap:
        """Put a tap, with nothing to do, before the model's runner, in place of an earlier one."""

        def install() -> Tap:
            resident = self.engine._loop.models.get(self.model._key)
            real = resident.runner.real if isinstance(resident.runner, Tap) else resident.runner
            tap = resident.runner = Tap(real)
            return tap

        return self.on_thread(install)

    def request(self, subject: str, tokens: int = TOKENS, *, long: bool = False, **more: Any) -> Request:
        text = (LONG if long else "") + f"Tell me about {subject} and why they are as they are."
        drawn = subject in SUBJECTS and SUBJECTS.index(subject) % 2
        params = SamplingParams(temperature=0.9 if drawn else 0.0, seed=7)
        ids = self.model.template.encode([Message("user", text)])
        return Request(tuple(ids), params, max_tokens=tokens, ignore_eog=True, label=subject, **more)

    def submit(self, subject: str, tokens: int = TOKENS, **more: Any) -> Generation:
        return self.model.submit(self.request(subject, tokens, **more))

    def together(self, *requests: Request) -> list[Generation]:
        """Submit requests so that all of them are in the first tick."""
        entered, go = threading.Event(), threading.Event()
        holder = threading.Thread(target=lambda: self.on_thread(lambda: (entered.set(), go.wait(WAIT))))
        holder.start()
        entered.wait(WAIT)
        made = [self.model.submit(request) for request in requests]
        go.set()
        holder.join(WAIT)
        return made

    def everybody(self, tokens: int = TOKENS, **victim: Any) -> tuple[list[Generation], Generation]:
        """The four answers and the victim's, all in the first tick."""
        mine = self.request(VICTIM, tokens, **victim)
        *others, one = self.together(*map(self.request, SUBJECTS), mine)
        return others, one

    def ids(self, generation: Generation) -> list[int]:
        """The answer's token ids; it must end exactly once, by its length."""
        ids, end = read(generation)
        assert end.reason is FinishReason.LENGTH, end.error
        return ids

    def check_others(self, generations: list[Generation]) -> None:
        """Everybody who is not a victim answers as in the clean run."""
        for generation in generations:
            assert self.ids(generation) == self.expected[generation.request.label]

    def check_idle(self) -> None:
        """Nobody holds a block, the bookkeeping balance, and the engine answers as before."""
        subject = SUBJECTS[0]
        assert self.ids(self.submit(subject)) == self.expected[subject]
        self.on_thread(self._books)

    def _books(self) -> None:
        loop = self.engine._loop
        loop.scheduler.check()
        assert not loop.scheduler.sequences and not loop._outputs
        for resident in loop.models:
            assert resident.blocks.held == 0, "blocks were leaked"


def read(generation: Generation) -> tuple[list[int], Finished]:
    """All token ids and the only terminal event."""
    watchdog = threading.Timer(WAIT, generation.stream.push, [_LATE])
    watchdog.start()
    events: list[Event] = list(generation.events())
    watchdog.cancel()
    ends = [event for event in events if isinstance(event, Finished)]
    assert len(ends) == 1 and events[-1] is ends[0] and ends[0] is not _LATE
    assert generation.poll() == []
    ids = [i for event in events if isinstance(event, TextDelta) for i in event.token_ids]
    assert len(ids) <= ends[0].completion_tokens
    return ids, ends[0]


_LATE = Finished(FinishReason.ERROR, "never ended", 0, 0, 0, queue_ms=0.0, ttft_ms=None, tok_s=0.0)


def labels(batch: ModelBatch) -> list[str]:
    """Whose tokens a pass has."""
    return [sequence.request.label for sequence in batch.sequences]
