"""A model of the engine as chats see it: messages become token ids here, and ids are what it goes on from."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.models.backends.limits import answer_limit, prompt_too_long
from app.models.backends.port import Asked, Beginning, ChatRequest, ContextFullError
from app.models.backends.thoughts import going_on
from app.models.backends.tool_texts import without_tools
from app.models.port import Counting, ModelPort
from app.models.recommended import Recommended, recommended_for
from engine import (
    Constraint,
    KeptAnswer,
    Message,
    Prompt,
    Request,
    RequestError,
    SamplingParams,
    Thinking,
    ThinkingSupport,
    ToolFormat,
)


class LocalModel:
    """Renders chats by the model's own template and submits their ids."""

    def __init__(self, local: ModelPort, path: Path | None = None) -> None:
        """path: what was chosen, where that is a further name of its file."""
        self.local = local
        self._path = path or local.path

    @property
    def path(self) -> Path:
        """The file it came from, or the one that stands for the name that was chosen."""
        return self._path

    @property
    def name(self) -> str:
        """What the engine calls it."""
        return self.local.name

    @property
    def kind(self) -> str:
        """Its quantization."""
        return str(self.local.info.quantization)

    @property
    def context_length(self) -> int:
        """Most tokens of one chat that the model can read."""
        return self.local.context_length

    @property
    def max_tokens(self) -> int:
        """Most tokens of one chat; less than `context_length` where context memory is short."""
        return self.local.max_tokens

    @property
    def continues(self) -> bool:
        """It goes on with ids, and with a text where its tokenizer has ids for it."""
        return True

    @property
    def warnings(self) -> list[str]:
        """What is unusual about its template and its tokenizer."""
        found = (self.local.template.warning, self.local.tokenizer.warning)
        return [warning for warning in found if warning]

    @property
    def counter(self) -> Counting | None:
        """Its tokenizer, where that counts."""
        tokenizer = self.local.tokenizer
        return tokenizer if isinstance(tokenizer, Counting) else None

    @property
    def thinking_support(self) -> ThinkingSupport:
        """What its template understands of a choice how much to think."""
        return self.local.template.thinking_support

    def recommended(self) -> Recommended:
        """Return the sampling and the system prompt that its makers recommend."""
        return recommended_for(self.path)

    def chat(self, request: ChatRequest) -> Asked:
        """Encode a chat and ask for its next answer."""
        support = self.thinking_support
        fitted = support.fitted(request.thinking)
        row = self.local.template.tool_format
        recommended = self.recommended()
        messages, kept = _with_system(recommended.system, request)
        messages = messages if row is not None else without_tools(messages)
        tools = request.tools if row is not None and request.tools else None
        prompt = self.local.template.prompt(messages, kept=kept, thinking=fitted, tools=tools)
        answered = self._encoded(request.beginning, prompt)
        ids = (*prompt.ids, *answered)
        limit = recommended.limit(request.max_tokens, request.chosen)
        if problem := prompt_too_long(len(ids), limit, self.local, in_chat=request.in_chat):
            raise ContextFullError(problem)
        submitted = Request(
            *(ids, recommended.applied(request.sampling, request.chosen)),
            max_tokens=answer_limit(len(ids), limit, self.local),
            stop=request.stop,
            priority=request.priority,
            label=request.label,
            owner=request.owner,
            answered=len(answered),
            constraint=self._constraint(request.constraint, prompt),
        )
        lacks = support.lacks(request.thinking)
        return self._submit(submitted, prompt, fitted, lacks, row if tools is not None else None)

    def _constraint(self, constraint: Constraint | None, prompt: Prompt) -> Constraint | None:
        """What the answer is held to, its thoughts left free."""
        if constraint is None or not (self.thinking_support.has_thoughts or prompt.starts_in_reasoning):
            return constraint
        return replace(constraint, answer_format=prompt.answer_format, in_thoughts=prompt.starts_in_reasoning)

    def _encoded(self, beginning: Beginning, prompt: Prompt) -> tuple[int, ...]:
        """All ids of an answer's beginning; `RequestError` where the model cannot begin so."""
        if not beginning.text:
            return beginning.ids
        if prompt.starts_in_reasoning and not beginning.ids:
            raise RequestError(
                "This model begins with its thoughts, and there are none of its own here. Open the model "
                "that wrote the answer, or have another answer written."
            )
        if self.counter is None:
            raise RequestError("This model cannot go on with a text; have another answer written.")
        return (*beginning.ids, *self.counter.encode_content(beginning.text))

    def _submit(
        self,
        request: Request,
        prompt: Prompt,
        thinking: Thinking,
        lacks: str | None,
        tool_format: ToolFormat | None,
    ) -> Asked:
        def asked(request: Request) -> Asked:
            return self._submit(request, prompt, thinking, lacks, tool_format)

        def again(sampling: SamplingParams, chosen: Collection[str]) -> Asked:
            return asked(replace(request, sampling=self.recommended().applied(sampling, chosen)))

        def go_on(answer_ids: Sequence[int]) -> Asked:
            return asked(going_on(request, prompt.ids, answer_ids))

        return Asked(
            self.local.submit(request),
            prompt,
            thinking,
            lacks,
            max_tokens=request.max_tokens,
            again=again,
            answered=request.answered,
            go_on=go_on,
            tool_format=tool_format,
            knows_tools=tool_format is not None,
        )


def _with_system(system: str, request: ChatRequest) -> tuple[Sequence[Message], Mapping[int, KeptAnswer]]:
    """Messages and kept answers of a chat, behind the system prompt where the chat begins with none."""
    messages, kept = request.messages, request.kept
    if not system.strip() or (messages and messages[0].role == "system"):
        return messages, kept
    return (Message("system", system), *messages), {at + 1: answer for at, answer in kept.items()}
