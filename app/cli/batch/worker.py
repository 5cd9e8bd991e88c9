"""Answering one prompt of a batch on a thread of its own; the engine runs all of them together."""

import threading
from typing import TYPE_CHECKING, Any

from app.chat.turn import own_fault
from app.cli.batch.lines import Job, with_sampling
from app.models.backends.port import ChatModel, ChatRequest
from app.settings.file import SamplingSettings
from engine import (
    EngineClosedError,
    EngineError,
    EngineFailedError,
    Finished,
    FinishReason,
    Priority,
    Thinking,
)

if TYPE_CHECKING:
    from app.chat.answers.running import RunningAnswer


class Answerer:
    """Asks a model; safe to use from several threads."""

    def __init__(
        self,
        model: ChatModel,
        settings: SamplingSettings,
        thinking: Thinking | None,
        *,
        watched: bool,
    ) -> None:
        """settings: what holds where a line says nothing; watched: whether repetition ends answers."""
        self._model, self._settings = model, settings
        self._thinking = thinking or settings.think
        self._watched = watched
        self._lock = threading.Lock()
        self._running: set[RunningAnswer] = set()
        self._stopped = False

    def stop(self) -> None:
        """End every answer; what is asked later ends at once."""
        with self._lock:
            self._stopped = True
            for running in self._running:
                running.generation.cancel()

    def answer(self, job: Job) -> dict[str, Any] | None:
        """Return the record of an answer, or of why there is none; None after `stop`."""
        try:
            running = self._ask(job)
            return None if running is None else self._read(job, running)
        except (EngineFailedError, EngineClosedError):
            raise
        except EngineError as error:
            return _record(job, self._model.name, error=str(error))
        except Exception as error:
            # The other lines go on all night.
            return _record(job, self._model.name, error=own_fault(error))

    def _read(self, job: Job, running: "RunningAnswer") -> dict[str, Any] | None:
        from app.chat.answers.reading import read_answer

        reading = read_answer(running)
        try:
            while True:
                next(reading)
        except StopIteration as end:
            return self._written(job, running, end.value)
        finally:
            with self._lock:
                self._running.discard(running)

    def _ask(self, job: Job) -> "RunningAnswer | None":
        from app.chat.answers.running import RunningAnswer
        from app.chat.conversation import Conversation
        from app.chat.reasoning import splitter_for
        from engine import Message

        settings = self._settings
        messages = [Message(role, content) for role, content in job.messages]
        if settings.system_prompt and messages[0].role not in ("system", "developer"):
            messages.insert(0, Message("system", settings.system_prompt))
        request = ChatRequest(
            *(messages, {}, with_sampling(settings.params(), job), job.max_tokens or settings.token_limit),
            chosen=settings.chosen | job.sampling.keys(),
            thinking=job.thinking or self._thinking,
            stop=job.stop,
            priority=Priority.LOW,
            label=job.id,
            in_chat=False,
        )
        asked = self._model.chat(request)
        chat = Conversation()
        splitter = splitter_for(asked.prompt.answer_format, asked.prompt.starts_in_reasoning)
        node = chat.begin_answer(str(self._model.path), splitter)
        running = RunningAnswer(chat, node.id, asked, self._model, watched=self._watched)
        with self._lock:
            if self._stopped:
                asked.generation.cancel()
                return None
            self._running.add(running)
        return running

    def _written(self, job: Job, running: "RunningAnswer", finished: Finished) -> dict[str, Any] | None:
        if self._stopped and finished.reason is FinishReason.CANCELLED:
            return None
        from app.chat.answers.running import Said

        running.finish(finished, Said())
        node, cost = running.node, running.cost(finished)
        return _record(
            *(job, self._model.name, node.text, node.reasoning),
            reason="repetition" if running.repeats else str(finished.reason),
            tokens=(cost.prompt_tokens, cost.tokens),
            error=finished.error if finished.reason is FinishReason.ERROR else None,
        )


def _record(
    job: Job,
    model: str,
    text: str = "",
    reasoning: str = "",
    *,
    reason: str = "error",
    tokens: tuple[int, int] = (0, 0),
    error: str | None = None,
) -> dict[str, Any]:
    if not job.in_openai_form:
        return {
            "id": job.id,
            "model": model,
            "text": text,
            "reasoning": reasoning or None,
            "finish_reason": reason,
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "error": error,
        }
    message = {"role": "assistant", "content": text} | ({"reasoning_content": reasoning} if reasoning else {})
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    ended = "length" if reason == "length" else "stop"
    body = {
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": ended}],
        "usage": usage,
    }
    return {
        "custom_id": job.id,
        "response": None if error else {"status_code": 200, "body": body},
        "error": {"message": error} if error else None,
    }
