"""One tab without its widgets: a conversation, its model and the answer that is being written.

A session runs on the user interface's thread. It tells what happens as `SessionEvent`s; whoever
shows the tab turns them into widgets, and a tab that nobody looks at costs no painting.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from app.conversation import AnswerStats, Conversation, MessageNode, Role, Status
from app.draft import Draft
from app.engine_port import GenerationPort, ModelPort
from app.engine_service import EngineService, LoadJob
from app.prompt import prompt_messages, prompt_too_long
from app.pump import Pump
from app.reasoning import Part
from engine.errors import EngineError, RequestError
from engine.request import Event, Finished, FinishReason, Request, TextDelta
from engine.stats import SequenceState, SequenceStats


class TabState(StrEnum):
    """What a tab is doing, as its glyph shows it."""

    IDLE = "idle"
    LOADING = "loading"
    QUEUED = "queued"
    READING = "reading"
    GENERATING = "generating"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Changed:
    """State, title, queue or model changed; nothing in the transcript."""


@dataclass(frozen=True, slots=True)
class PathChanged:
    """The shown messages changed other than by streaming; show them anew."""


@dataclass(frozen=True, slots=True)
class TextStreamed:
    """Text was added to the end of an answer."""

    node_id: str
    pieces: tuple[tuple[Part, str], ...]


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """An answer ended; its node says how."""

    node_id: str


@dataclass(frozen=True, slots=True)
class TextReturned:
    """Text that could not be sent goes back to the composer."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell the reader."""

    text: str
    severity: str = "warning"


SessionEvent = Changed | PathChanged | TextStreamed | AnswerFinished | TextReturned | Notice


class HistoryPort(Protocol):
    """The part of the history store that a session writes to."""

    def save(self, conversation: Conversation) -> None:
        """Save the whole conversation, soon."""

    def append(self, conversation: Conversation, node_id: str) -> None:
        """Save an answer that has grown, soon."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every session shares."""

    engine: EngineService
    pump: Pump
    history: HistoryPort


@dataclass(frozen=True, slots=True)
class _Turn:
    """An answer to ask for: after `parent`, with `text` as the new message, or again as a sibling."""

    parent: str | None
    text: str | None
    again: str | None = None


class ChatSession:
    """One tab. `report` receives every event, in order."""

    def __init__(
        self,
        conversation: Conversation,
        services: Services,
        report: Callable[["ChatSession", SessionEvent], None],
    ) -> None:
        self.conversation = conversation
        self.model: ModelPort | None = None
        self.draft = Draft.folded(conversation.draft)
        self.editing: str | None = None
        self.unread = False
        self.queued: list[str] = []
        self.warnings: list[str] = []
        self.load_error: str | None = None
        self.load_progress: tuple[float, str] = (0.0, "")
        self.loading_path: Path | None = None
        self.stats: SequenceStats | None = None
        self._services = services
        self._report = report
        self._job: LoadJob | None = None
        self._generation: GenerationPort | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer: str | None = None
        self._retired: list[ModelPort] = []
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether an answer is being prepared or written."""
        return self._task is not None or self._generation is not None

    @property
    def sequence_id(self) -> int | None:
        """The engine's id of the running answer."""
        return self._generation.sequence_id if self._generation is not None else None

    @property
    def state(self) -> TabState:
        """What the tab is doing now."""
        if self._generation is not None:
            if self.stats is not None and self.stats.state in (SequenceState.QUEUED, SequenceState.PAUSED):
                return TabState.QUEUED
            if self.stats is not None and self.stats.state is SequenceState.PREFILL:
                return TabState.READING
            node = self.conversation.nodes[self._answer or ""]
            return TabState.GENERATING if node.token_ids else TabState.READING
        if self._task is not None:
            return TabState.READING
        if self._job is not None:
            return TabState.LOADING
        last = self.conversation.nodes.get(self.conversation.leaf or "")
        failed = self.load_error is not None and self.model is None
        return TabState.ERROR if failed or (last and last.status is Status.ERROR) else TabState.IDLE

    @property
    def reading_fraction(self) -> float:
        """How much of the prompt has been read, 0 to 1."""
        if self.stats is None or not self.stats.prompt_tokens:
            return 0.0
        return min(1.0, self.stats.computed_tokens / self.stats.prompt_tokens)

    def observe(self, stats: SequenceStats | None) -> None:
        """Take the engine's newest numbers of this tab's answer."""
        self.stats = stats

    def open_model(self, path: Path) -> None:
        """Load a model for this tab; the present one stays until the new one is there."""
        self.cancel_load()
        self.loading_path = path
        self.load_error = None
        self.load_progress = (0.0, "waiting")
        self._job = self._services.engine.load(path, self._on_loaded, self._on_load_failed, self._on_progress)
        self._tell(Changed())

    def cancel_load(self) -> bool:
        """Give up a load that is under way; tell whether there was one."""
        if self._job is None:
            return False
        self._job.cancel()
        self._job = self.loading_path = None
        if self.model is None:
            self.load_error = "No model is open: loading was stopped. Press Ctrl+O to choose one."
        self._return_queue()
        self._tell(Changed())
        return True

    def send(self, text: str) -> None:
        """Ask with a new message; while the tab is busy or loading the message waits its turn."""
        if self.busy or (self.model is None and self._job is not None):
            self.queued.append(text)
            self._tell(Changed())
        else:
            self._launch(_Turn(self.conversation.leaf, text))

    def edit(self, node_id: str, text: str) -> None:
        """Ask with a message written differently; the old branch stays in the tree."""
        if self._refuse_while_busy(text):
            return
        self._launch(_Turn(self.conversation.nodes[node_id].parent, text))

    def regenerate(self) -> None:
        """Write the last answer again beside the old one, or answer a message that has no answer."""
        leaf = self.conversation.nodes.get(self.conversation.leaf or "")
        if leaf is None or self._refuse_while_busy(None):
            return
        if leaf.role is Role.USER:
            self._launch(_Turn(leaf.id, None))
        else:
            self._launch(_Turn(leaf.parent, None, again=leaf.id))

    def show_sibling(self, step: int) -> None:
        """Show the alternative `step` places from the last answer (or message) that has any."""
        if self._refuse_while_busy(None):
            return
        for node in reversed(self.conversation.path()):
            siblings = self.conversation.siblings(node.id)
            if len(siblings) > 1:
                at = [sibling.id for sibling in siblings].index(node.id)
                self.conversation.select(siblings[(at + step) % len(siblings)].id)
                self._save()
                self._tell(PathChanged())
                return

    def stop(self) -> bool:
        """Stop the answer and keep what is there; tell whether there was one."""
        if not self.busy:
            return False
        if self._generation is not None:
            self._generation.cancel()
        elif self._task is not None:
            self._task.cancel()
        self._return_queue()
        return True

    def rename(self, title: str) -> None:
        """Give the conversation another title."""
        self.conversation.title = title
        self._save()
        self._tell(Changed())

    def settings_changed(self) -> None:
        """Save the conversation after its settings were changed; the next answer uses them."""
        self._save()
        self._tell(Changed())

    def shut_down(self) -> None:
        """Leave: an answer that is being written is kept as stopped; nothing is reported any more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._generation is not None and self._answer is not None:
            self._generation.cancel()
            self.conversation.finish(self._answer, Status.STOPPED)
            self._generation = self._answer = None
        waiting = [*self.queued, self.conversation.draft]
        self.conversation.draft = "\n\n".join(text for text in waiting if text.strip())
        self._save()

    def close(self) -> None:
        """Stop everything of this tab and give its model back."""
        self._closed = True
        self.cancel_load()
        self.stop()
        if self._generation is None:
            self._release()

    def _refuse_while_busy(self, text: str | None) -> bool:
        if not self.busy:
            return False
        if text is not None:
            self._tell(TextReturned(text))
        self._tell(Notice("An answer is being written; press Esc to stop it first.", "information"))
        return True

    def _launch(self, turn: _Turn) -> None:
        if self.model is None:
            self._turn_failed(turn, self.load_error or "No model is open; press Ctrl+O to choose one.")
            return
        self._task = asyncio.get_running_loop().create_task(self._run_turn(turn, self.model))
        self._tell(Changed())

    async def _run_turn(self, turn: _Turn, model: ModelPort) -> None:
        conversation = self.conversation
        before = conversation.path(turn.parent) if turn.parent is not None else []
        messages, kept = prompt_messages(conversation.system_prompt, before, turn.text, str(model.path))
        options = (conversation.sampling, conversation.max_tokens, conversation.title)

        def submit() -> GenerationPort:
            ids = model.template.encode(messages, kept=kept)
            if problem := prompt_too_long(len(ids), model):
                raise RequestError(problem)
            sampling, limit, label = options
            return model.submit(Request(tuple(ids), sampling, max_tokens=limit, label=label))

        running = asyncio.get_running_loop().run_in_executor(None, submit)
        try:
            generation = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_cancel_when_submitted)
            self._turn_failed(turn, None)
        except EngineError as error:
            self._turn_failed(turn, str(error))
        else:
            self._begin(turn, model, generation)

    def _turn_failed(self, turn: _Turn, reason: str | None) -> None:
        self._task = None
        if turn.text is not None:
            self._tell(TextReturned(turn.text))
        self._return_queue()
        if reason is not None:
            self._tell(Notice(reason, "error"))
        self._tell(Changed())

    def _begin(self, turn: _Turn, model: ModelPort, generation: GenerationPort) -> None:
        self._task = None
        self._generation = generation
        conversation = self.conversation
        in_reasoning = model.template.starts_in_reasoning(None)
        if turn.again is not None:
            answer = conversation.regenerate(turn.again, str(model.path), in_reasoning=in_reasoning)
        else:
            conversation.leaf = turn.parent
            if turn.text is not None:
                conversation.add_user(turn.text)
            answer = conversation.begin_answer(str(model.path), in_reasoning=in_reasoning)
        self._answer = answer.id
        self._save()
        self._services.pump.attach(generation, self._on_events)
        self._tell(PathChanged())

    def _on_events(self, events: Sequence[Event]) -> None:
        answer = self._answer
        if answer is None:
            return
        deltas = [event for event in events if isinstance(event, TextDelta)]
        if deltas:
            ids = [token_id for delta in deltas for token_id in delta.token_ids]
            pieces = self.conversation.append(answer, "".join(delta.text for delta in deltas), ids)
            self._services.history.append(self.conversation, answer)
            if pieces:
                self._tell(TextStreamed(answer, tuple(pieces)))
        if events and isinstance(events[-1], Finished):
            self._finish(answer, events[-1])

    def _finish(self, answer: str, finished: Finished) -> None:
        status, error = _outcome(finished)
        stats = AnswerStats(
            tokens=finished.completion_tokens,
            tok_s=finished.tok_s,
            ttft_ms=finished.ttft_ms,
            cached_tokens=finished.cached_tokens,
            prompt_tokens=finished.prompt_tokens,
        )
        self._generation = self._answer = self.stats = None
        pieces = self.conversation.finish(answer, status, error=error, stats=stats)
        self._save()
        if pieces:
            self._tell(TextStreamed(answer, tuple(pieces)))
        self._tell(AnswerFinished(answer))
        self._release_retired()
        if self._closed:
            self._release()
        elif status is Status.COMPLETE and self.queued:
            self.send(self.queued.pop(0))
        else:
            self._return_queue()

    def _return_queue(self) -> None:
        if self.queued:
            text, self.queued = "\n\n".join(self.queued), []
            self._tell(TextReturned(text))

    def _on_progress(self, fraction: float, what: str) -> None:
        self.load_progress = (fraction, what)

    def _on_loaded(self, model: ModelPort) -> None:
        self._job = self.loading_path = None
        if self.model is not None:
            self._retired.append(self.model)
        self.model = model
        self.conversation.model_path = str(model.path)
        found = (model.template.warning, model.tokenizer.warning)
        self.warnings = [warning for warning in found if warning]
        self._save()
        if not self.busy:
            self._release_retired()
        self._tell(Changed())
        for warning in self.warnings:
            self._tell(Notice(warning))
        if self.queued and not self.busy:
            self.send(self.queued.pop(0))

    def _on_load_failed(self, reason: str) -> None:
        self._job = self.loading_path = None
        if self.model is not None:
            reason = f"{reason} This chat goes on with {self.model.name}."
        else:
            self.load_error = reason
            self._return_queue()
        self._tell(Notice(reason, "error"))
        self._tell(Changed())

    def _release_retired(self) -> None:
        for model in self._retired:
            self._services.engine.release(model)
        self._retired.clear()

    def _release(self) -> None:
        self._release_retired()
        if self.model is not None:
            self._services.engine.release(self.model)
            self.model = None

    def _save(self) -> None:
        self._services.history.save(self.conversation)

    def _tell(self, event: SessionEvent) -> None:
        if not self._closed:
            self._report(self, event)


def _cancel_when_submitted(running: "asyncio.Future[GenerationPort]") -> None:
    """Cancel an answer that was stopped while its prompt was still being encoded."""
    if not running.cancelled() and running.exception() is None:
        running.result().cancel()


def _outcome(finished: Finished) -> tuple[Status, str | None]:
    if finished.reason is FinishReason.ERROR:
        return Status.ERROR, finished.error or "The engine gave no reason."
    if finished.reason is FinishReason.CANCELLED:
        return Status.STOPPED, None
    return Status.COMPLETE, None


def reached_limit(node: MessageNode, context_length: int) -> bool:
    """Whether an answer ended because the context was full."""
    stats = node.stats
    return stats is not None and stats.prompt_tokens + stats.tokens >= context_length
