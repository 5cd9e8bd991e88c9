"""An engine without a model: tests drive every token, or let a thread stream at a given pace."""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.api.answer_format import THINK, AnswerFormat
from engine.api.constraint import Constraint, ConstraintError
from engine.api.detail import DeviceUse, EngineDetail, KVHolding, KVPool, SequenceDetail, TickRecord
from engine.api.errors import EngineError, ModelFileError, RequestError
from engine.api.load_plan import LoadPlan, PlannedRelease, Release
from engine.api.request import Event, Finished, FinishReason, Priority, Request, TextDelta
from engine.api.stats import EngineStats, ModelState, ModelStats, SequenceState, SequenceStats
from engine.api.thinking import Thinking, ThinkingSupport
from engine.api.tool_format import ToolFormat
from engine.templates.turns import Prompt

ENDING = (TextDelta("</think>", (900_000,), "</think>"),)
STATS = EngineStats(
    device="cpu",
    kernels="torch float32",
    kv_dtype="bf16",
    block_size=16,
    kv_bytes_total=2_000_000_000,
    kv_bytes_used=0,
    kv_bytes_cached=0,
    blocks_used=0,
    blocks_cached=0,
    rows=0,
    prefill_tokens=0,
    tick_ms=12.0,
    ticks=0,
    queue_length=0,
    decode_tok_s=0.0,
    prefill_tok_s=0.0,
    process_bytes=1_100_000_000,
    preemptions=0,
)


@dataclass
class FakeInfo:
    architecture: str = "qwen3"
    quantization: str = "Q4_K_M"
    parameters: int = 44_000_000
    weight_bytes: int = 88_000_000
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    kv_bytes_per_token: int = 2048
    size_bytes: int = 32_000_000


@dataclass
class FakeTokenizer:
    """One token a word; keeps what it was asked to count."""

    warning: str | None = None
    counted: list[str] = field(default_factory=list)
    gate: threading.Event | None = None
    vocab_size: int = 1000

    def is_control(self, token_id: int) -> bool:
        return token_id < 3

    def encode_content(self, text: str) -> list[int]:
        self.counted.append(text)
        if self.gate is not None:
            self.gate.wait()
        return [0] * len(text.split())


@dataclass
class FakeTemplate:
    """One token a word; keeps what it was asked to encode."""

    warning: str | None = None
    opened: bool = False
    failed: str | None = None
    """Why the file's template is not used for a prompt."""
    answer_format: AnswerFormat = THINK
    thinking_support: ThinkingSupport = field(default_factory=ThinkingSupport)
    ending: tuple[TextDelta, ...] = ENDING
    thought: list[Thinking] = field(default_factory=list)
    """The choice that came with each prompt."""
    calls: list[tuple[list[tuple[str, str]], Mapping[int, object]]] = field(default_factory=list)
    gate: threading.Event | None = None

    tool_format: ToolFormat | None = None
    offered: list[Sequence[Mapping[str, object]]] = field(default_factory=list)
    """The tools that came with each prompt."""
    messages: Sequence[object] = ()
    """The last prompt's."""

    def prompt(
        self,
        messages: Sequence[object],
        *,
        kept: Mapping[int, object],
        thinking: Thinking,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> Prompt:
        self.messages = messages
        self.offered.append(tools or ())
        if self.gate is not None:
            self.gate.wait(60)
        self.thought.append(thinking)
        self.calls.append(([(m.role, m.content) for m in messages], dict(kept)))
        ids = list(range(sum(len(m.content.split()) + 2 for m in messages)))
        return Prompt(ids, self.opened, self.failed, self.answer_format, self.ending)


class FakeGeneration:
    """A stream that a test feeds: `feed(text)`, then `finish()`."""

    def __init__(self, model: "FakeModel", sequence_id: int, request: Request) -> None:
        self.model = model
        self.sequence_id = sequence_id
        self.request = request
        self.finished: Finished | None = None
        self.state = SequenceState.QUEUED
        self.computed = 0
        self.tokens = 0
        self.tok_s = 30.0
        self.note = ""
        self.before = self.state
        self.held = False
        self.priority = request.priority
        self.cancel_on_request = True
        self.more: dict[str, object] = {}
        """Statistics that a test sets itself."""
        self._events: deque[Event] = deque()
        self._listener: Callable[[], None] | None = None

    def cancel(self) -> None:
        if self.cancel_on_request:
            self.finish(FinishReason.CANCELLED)

    def pause(self) -> None:
        self.before, self.state, self.held = self.state, SequenceState.PAUSED, True

    def resume(self) -> None:
        self.state, self.held = self.before, False

    def set_priority(self, priority: Priority) -> None:
        self.priority = priority

    def poll(self) -> list[Event]:
        events: list[Event] = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def set_listener(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener
        if listener is not None and self._events:
            listener()

    def read(self, tokens: int) -> None:
        self.state = SequenceState.PREFILL
        self.computed = tokens

    def feed(self, text: str, marker: str = "") -> None:
        self.state = SequenceState.DECODE
        self.computed = len(self.request.prompt_ids) + self.tokens
        ids = tuple(range(self.tokens, self.tokens + max(1, len(text.split()))))
        self.tokens += len(ids)
        delta = TextDelta(text, ids, marker)
        self.push(delta)

    def again(self) -> None:
        """Feed the beginning of the answer that the request continues, as the engine does."""
        for token_id in self.request.prompt_ids[len(self.request.prompt_ids) - self.request.answered :]:
            self.push(TextDelta("again", (token_id,)))

    def finish(self, reason: FinishReason = FinishReason.STOP, error: str | None = None) -> None:
        if self.finished is not None:
            return
        self.finished = Finished(
            reason, error, len(self.request.prompt_ids), 0, self.tokens, 1.0, 12.0, self.tok_s
        )
        self.push(self.finished)

    def push(self, event: Event) -> None:
        first = not self._events
        self._events.append(event)
        if first and self._listener is not None:
            self._listener()

    def stats(self) -> SequenceStats:
        prompt = len(self.request.prompt_ids)
        stats = SequenceStats(
            sequence_id=self.sequence_id,
            model=self.model.name,
            label=self.request.label,
            state=self.state,
            prompt_tokens=prompt,
            computed_tokens=self.computed,
            context_tokens=prompt + self.tokens,
            context_length=self.model.context_length,
            blocks_own=(prompt + self.tokens) // 16 + 1,
            blocks_shared=2,
            tok_s=self.tok_s if self.state is SequenceState.DECODE else 0.0,
            queue_position=1 if self.state is SequenceState.QUEUED else 0,
            note=self.note,
            priority=self.priority,
            user_paused=self.held,
            focused=self.model.engine.focused == self.sequence_id,
        )
        return replace(stats, **self.more)


class FakeModel:
    def __init__(self, engine: "FakeEngine", path: Path, context_length: int) -> None:
        self.engine = engine
        self.id = len(engine.models) + 1
        self.name = path.stem
        self.path = path
        self.context_length = context_length
        self.longest_context = context_length
        self.max_tokens = min(context_length, engine.kv_tokens)
        self.tokenizer = FakeTokenizer()
        self.template = FakeTemplate()
        self.info = FakeInfo()
        self.unloaded = False

    def limit_context(self, tokens: int) -> None:
        if self.id in self.engine.aside:
            raise EngineError("the model is paused; wake it before")
        self.context_length = min(tokens, self.longest_context)
        self.max_tokens = min(self.context_length, self.engine.kv_tokens)

    def check_constraint(self, constraint: Constraint) -> None:
        if self.engine.refuse is not None:
            raise ConstraintError("", self.engine.refuse)

    def submit(self, request: Request) -> FakeGeneration:
        if self.engine.refuse is not None:
            raise RequestError(self.engine.refuse)
        generation = FakeGeneration(self, len(self.engine.generations) + 1, request)
        self.engine.generations.append(generation)
        if self.engine.on_submit is not None:
            self.engine.on_submit(generation)
        return generation

    def unload(self) -> None:
        self.unloaded = True


class FakeEngine:
    """`generations` holds every stream in order of submission."""

    def __init__(self, context_length: int = 2048) -> None:
        self.context_length = context_length
        self.kv_tokens = 1 << 30
        self.generations: list[FakeGeneration] = []
        self.models: list[FakeModel] = []
        self.failures: dict[str, str] = {}
        self.load_gates: dict[str, threading.Event] = {}
        self.warnings: dict[str, str] = {}
        self.refuse: str | None = None
        self.closed = False
        self.focused: int | None = None
        self.base = STATS
        self.by_torch: tuple[str, ...] = ()
        """What torch computes of every model."""
        self.num_blocks = 601
        self.windows = (0,)
        self.ticks: list[TickRecord] = []
        self.use: DeviceUse | None = None
        self.looks = 0
        self.fits = 1 << 30
        """How many models memory holds."""
        self.refusals: dict[str, str] = {}
        self.answering: set[int] = set()
        self.aside: dict[int, bool] = {}
        """Ids of models that are put aside, and whether they were unloaded."""
        self.kept_of = ""
        """The chat of which the last blocks are kept."""
        self.evicted: list[str] = []
        self.saved: list[str] = []
        self.on_submit: Callable[[FakeGeneration], None] | None = None

    def plan_load(self, path: Path, *, context_length: int | None = None) -> LoadPlan:
        if path.name in self.failures:
            raise ModelFileError(self.failures[path.name])
        return self._plan(path.stem)

    def plan_wake(self, model_id: int) -> LoadPlan:
        return self._plan(self.models[model_id - 1].name)

    def _plan(self, name: str) -> LoadPlan:
        """As many models make room as `fits` says are too many, the oldest first."""
        there = [m for m in self.models if not m.unloaded and m.id not in self.aside and m.name != name]
        short = there[: max(0, len(there) + 1 - self.fits)]
        releases = [PlannedRelease(m.id, m.name, str(m.path), 88_000_000, Release.PAUSE, 0.5) for m in short]
        refusal = self.refusals.get(name)
        return LoadPlan(name, 90_000_000, 10_000_000, tuple(releases), 1.6, refusal)

    def pause_model(self, model_id: int, *, unload: bool = False) -> None:
        if model_id in self.answering:
            raise EngineError("it is answering; stop or pause its answers before")
        self.aside[model_id] = unload

    def wake_model(self, model_id: int, progress=None) -> None:
        for other in self.plan_wake(model_id).model_ids:
            self.pause_model(other)
        del self.aside[model_id]

    def pause_idle(self, seconds: float, now: float | None = None) -> list[str]:
        return []

    def load(
        self, path: Path, *, context_length: int | None = None, progress=None, pause: Iterable[int] = ()
    ) -> FakeModel:
        for other in pause:
            self.pause_model(other)
        if path.name in self.failures:
            raise ModelFileError(self.failures[path.name])
        gate = self.load_gates.get(path.name)
        for step in range(1, 11):
            if progress is not None:
                progress(step / 10, "reading weights")
            while gate is not None and step == 5 and not gate.wait(0.01):
                if progress is not None:
                    progress(step / 10, "reading weights")
        model = FakeModel(self, path, context_length or self.context_length)
        model.template.warning = self.warnings.get(path.name)
        self.models.append(model)
        return model

    def stats(self) -> EngineStats:
        live = [generation for generation in self.generations if generation.finished is None]
        rows = sum(generation.state is SequenceState.DECODE for generation in live)
        used = sum(len(g.request.prompt_ids) + g.tokens for g in live) * 200_000
        return replace(
            self.base,
            rows=rows,
            kv_bytes_used=used,
            kv_bytes_cached=150_000_000 if self.generations else 0,
            decode_tok_s=sum(g.tok_s for g in live if g.state is SequenceState.DECODE),
            queue_length=sum(g.state is SequenceState.QUEUED for g in live),
            sequences=tuple(generation.stats() for generation in live),
            models=tuple(
                ModelStats(
                    *(m.name, str(m.path), 88_000_000, 2048, m.context_length),
                    by_torch=self.by_torch,
                    model_id=m.id,
                    state=ModelState.PAUSED if m.id in self.aside else ModelState.LOADED,
                )
                for m in self.models
            ),
        )

    def focus(self, sequence_id: int | None) -> None:
        self.focused = sequence_id

    def detail(self) -> EngineDetail:
        """Every live generation holds the blocks after the one before it, and shares block 1 with all."""
        self.looks += 1
        stats, used, holdings, first = self.stats(), bytearray(self.num_blocks), [], 2
        for sequence in stats.sequences:
            blocks = [1, *range(first, first + sequence.blocks_own)]
            first += len(blocks) + 3
            holdings.append(KVHolding(sequence.sequence_id, array("i", blocks).tobytes()))
            for block in blocks:
                used[block] = 1
        used[-8:] = bytes([1] * 8)
        pools = tuple(
            KVPool(
                *(m.name, window, 16, 3_200, bytes(used), tuple(holdings), 0, 0),
                ("", self.kept_of),
                array("i", [0] * (self.num_blocks - 8) + [bool(self.kept_of)] * 8).tobytes(),
            )
            for m in self.models
            for window in self.windows
        )
        costs = tuple(
            SequenceDetail(s.sequence_id, 16, 860.0, 0, 3.0, 120.0 if s.tok_s else None)
            for s in stats.sequences
        )
        return EngineDetail(stats, pools, costs)

    def evict_kv(self, owner: str) -> int:
        if any(g.request.owner == owner and g.finished is None for g in self.generations):
            raise EngineError("it is answering; stop its answers before")
        self.evicted.append(owner)
        return 25_600

    def save_kv(self, owner: str) -> int:
        self.saved.append(owner)
        live = [g for g in self.generations if g.request.owner == owner and g.finished is None]
        return sum(len(g.request.prompt_ids) + g.tokens for g in live)

    def tick_log(self) -> list[TickRecord]:
        return self.ticks

    def device_use(self) -> DeviceUse | None:
        return self.use

    def close(self, timeout: float = 5.0) -> None:
        self.closed = True


class Streamer:
    """Feeds every new generation at `tok_s` on a thread, like an engine's tick does."""

    def __init__(self, engine: FakeEngine, words: Sequence[str], tok_s: float, tokens: int) -> None:
        self.engine, self.words, self.tok_s, self.tokens = engine, words, tok_s, tokens
        self.ticks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Streamer":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        due = time.perf_counter()
        while not self._stop.is_set():
            for generation in self.engine.generations:
                if generation.finished is not None:
                    continue
                if generation.tokens >= self.tokens:
                    generation.finish()
                else:
                    generation.feed(self.words[generation.tokens % len(self.words)])
            self.ticks += 1
            due += 1 / self.tok_s
            time.sleep(max(0.0, due - time.perf_counter()))
