"""What the app needs of the engine, as types only: the real engine and the tests' fake both fit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from engine import (
    Constraint,
    DeviceUse,
    EngineDetail,
    EngineStats,
    Event,
    Finished,
    LoadPlan,
    Priority,
    Prompt,
    Request,
    Thinking,
    ThinkingSupport,
    TickRecord,
    ToolCall,
    ToolFormat,
)

Progress = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and what is being done."""


class TemplatePort(Protocol):
    """Turns messages into token ids; see `engine.templates.chat_template.ChatTemplate`."""

    @property
    def warning(self) -> str | None:
        """What is wrong with the file's template, for the reader."""

    @property
    def thinking_support(self) -> ThinkingSupport:
        """What it understands of a choice how much to think; not for the UI's thread."""

    @property
    def tool_format(self) -> ToolFormat | None:
        """How its model calls tools; None where it cannot be told of any."""

    def prompt(
        self,
        messages: Sequence[Any],
        *,
        kept: Mapping[int, Any],
        thinking: Thinking,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Prompt:
        """Return the conversation as the model reads it; tools: in OpenAI's form."""


class TokenizerPort(Protocol):
    """The part of the tokenizer that the app looks at."""

    @property
    def warning(self) -> str | None:
        """What is unusual about the tokenizer, for the reader."""


@runtime_checkable
class Counting(Protocol):
    """A tokenizer that can be asked for the tokens of a text; not every backend has one."""

    def encode_content(self, text: str) -> list[int]:
        """Ids of what a person wrote."""


@runtime_checkable
class Vocabulary(Protocol):
    """A tokenizer whose ids can be drawn from."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    def is_control(self, token_id: int) -> bool:
        """Tell whether an id is no part of a text."""


@runtime_checkable
class Compiling(Protocol):
    """A model that may still be compiling kernels in the background."""

    def compiling(self) -> bool:
        """Whether it is; waits for a tick."""


class GenerationPort(Protocol):
    """One running answer."""

    @property
    def sequence_id(self) -> int | None:
        """The id under which the engine's statistics show it; None where they do not."""

    @property
    def finished(self) -> Finished | None:
        """The last event once it has ended."""

    def cancel(self) -> None:
        """Ask for its end; a `Finished` event follows."""

    def poll(self) -> list[Event]:
        """Return the events since the last call, without waiting."""

    def set_listener(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` whenever events appear where none waited, on any thread."""


@runtime_checkable
class Steerable(Protocol):
    """A running answer whose computing can be steered; not every backend's can."""

    def pause(self) -> None:
        """Ask the engine to compute no further for now."""

    def resume(self) -> None:
        """Go on after `pause`."""

    def set_priority(self, priority: Priority) -> None:
        """Change how it shares the device with others."""


@runtime_checkable
class Calling(Protocol):
    """A running answer whose calls of tools come beside its text."""

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls, once it has ended."""


@runtime_checkable
class Waits(Protocol):
    """A running answer that may wait for a server."""

    @property
    def waits(self) -> str:
        """For what, in a few words; "" where it does not."""


class SequencePort(GenerationPort, Steerable, Protocol):
    """A running answer of the engine's."""

    @property
    def request(self) -> Request:
        """What was asked for."""


class ModelPort(Protocol):
    """A model that is resident or aside."""

    @property
    def id(self) -> int:
        """What the engine and its plans call it."""

    @property
    def name(self) -> str:
        """Its title."""

    @property
    def path(self) -> Path:
        """The file it came from."""

    @property
    def context_length(self) -> int:
        """Most tokens of one sequence that the model can read."""

    @property
    def longest_context(self) -> int:
        """What `context_length` may be at most, by the model's file."""

    def limit_context(self, tokens: int) -> None:
        """Choose `context_length`; raises `EngineError` where that cannot be done now. Waits for a tick."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of one sequence; less than `context_length` where context memory is short."""

    @property
    def tokenizer(self) -> TokenizerPort:
        """Its tokenizer."""

    @property
    def template(self) -> TemplatePort:
        """Its chat template."""

    @property
    def info(self) -> Any:
        """`engine.engine.ModelInfo`: quantization, weight_bytes, kv_dtype and more."""

    def check_constraint(self, constraint: Constraint) -> None:
        """Compile what an answer is to be held to; raises `ConstraintError`."""

    def submit(self, request: Request) -> SequencePort:
        """Start a generation; raises `RequestError` when it can never fit."""

    def unload(self) -> None:
        """Give its memory back."""


class EnginePort(Protocol):
    """The engine's facade."""

    def plan_load(self, path: Path, *, context_length: int | None = None) -> LoadPlan:
        """Return who would make room for a model file."""

    def load(
        self,
        path: Path,
        *,
        context_length: int | None = None,
        progress: Progress | None = None,
        pause: Iterable[int] = (),
    ) -> ModelPort:
        """Load a model file once the models of these ids are put aside; blocking."""

    def pause_model(self, model_id: int, *, unload: bool = False) -> None:
        """Put an idle model aside, in host memory or, with `unload`, only as its file; blocking."""

    def plan_wake(self, model_id: int) -> LoadPlan:
        """Return who would make room for a model that is aside."""

    def wake_model(self, model_id: int, progress: Progress | None = None) -> None:
        """Bring a model back, whom its plan names making room; blocking."""

    def pause_idle(self, seconds: float, now: float | None = None) -> list[str]:
        """Put aside what nobody has asked for so long; returns names."""

    def stats(self) -> EngineStats:
        """Return the newest snapshot."""

    def detail(self) -> EngineDetail | None:
        """Return the last close look and have the next one taken; None before the first."""

    def tick_log(self) -> list[TickRecord]:
        """Return what the last ticks did, the oldest first."""

    def device_use(self) -> DeviceUse | None:
        """Return what the GPU's driver tells; blocking, some milliseconds."""

    def focus(self, sequence_id: int | None) -> None:
        """Serve one generation (its `sequence_id`) before all others; None: nobody."""

    def evict_kv(self, owner: str) -> int:
        """Forget what is kept of an owner's contexts and return its bytes; `EngineError` while it answers."""

    def save_kv(self, owner: str) -> int:
        """Begin to save an owner's running and paused answers on disk; return how many tokens."""

    def close(self, timeout: float = 5.0) -> None:
        """End every generation and the engine's thread."""


EngineFactory = Callable[[], EnginePort]
