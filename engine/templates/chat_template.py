"""Conversations → token ids, by the template that came with the model.

Three promises: contents never become control tokens, answers keep the ids that the model sampled, and
a template that fails is replaced by a stated default instead of failing the chat.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from engine.api.answer_format import format_of, tells_format
from engine.api.errors import TemplateError
from engine.api.request import TextDelta
from engine.api.thinking import Thinking, ThinkingSupport
from engine.api.tool_format import ToolCall, tool_format_of
from engine.gguf.file import GGUFFile
from engine.templates.default_templates import default_template
from engine.templates.file_template import FileTemplate, Template, say
from engine.templates.kept_answers import KeptAnswers
from engine.templates.renderer import TemplateLimitError
from engine.templates.shield import Shield, signal_characters
from engine.templates.thinking import ThinkingVariables, thinking_variables
from engine.templates.turns import KeptAnswer, Message, Prompt, Turn, fold_system, merge_neighbours, turn_of
from engine.tokenizer.detokenizer import replayed
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "KeptAnswer", "Message", "Prompt"]

log = logging.getLogger(__name__)

_NOTHING_KEPT: Mapping[int, KeptAnswer] = MappingProxyType({})
_BY_ITSELF = Thinking()


@dataclass(slots=True)
class _Rendered:
    """Rendered text in which contents are still hidden, and what stands for kept answers."""

    text: str
    shield: Shield
    answers: dict[str, tuple[int, ...]]


class ChatTemplate:
    """A model's chat template. Safe to use from several threads."""

    def __init__(self, source: str | None, tokenizer: Tokenizer, *, label: str = "the model") -> None:
        """`source` None: the file has no template and the default is used."""
        self._tokenizer = tokenizer
        self._label = label
        self._variables = {
            "bos_token": _token_text(tokenizer, tokenizer.bos_id),
            "eos_token": _token_text(tokenizer, tokenizer.eos_id),
        }
        self._signals = signal_characters(tokenizer.control_tokens)
        self.answer_format = format_of(source or "", tokenizer.control_tokens)
        """How the model sets its reasoning apart from its answer."""
        self._tells_format = tells_format(source or "", tokenizer.control_tokens)
        self._kept = KeptAnswers(tokenizer, self.answer_format)
        self.warning: str | None = None
        """Why the file's template is never used, where that is so."""
        self._default = default_template(tokenizer.control_tokens, self._variables["bos_token"])
        self._source: Template = self._default if source is None else self._compile(source)
        if source is None:
            self.warning = f"{label}: the file has no chat template; {self._default.name} is used."
        self.supports_system = self._source.supports_system
        self.tool_format = tool_format_of(self._source.text) if self._source.supports_tools else None
        """How the model calls tools; None where its template takes none, or in no way that is known."""

    @classmethod
    def from_gguf(cls, file: GGUFFile, tokenizer: Tokenizer, name: str | None = None) -> "ChatTemplate":
        """The file's template, or its template called `name`; never fails, see `warning`."""
        key = "tokenizer.chat_template" + (f".{name}" if name else "")
        return cls(file.string(key), tokenizer, label=file.path.name)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        kept: Mapping[int, KeptAnswer] = _NOTHING_KEPT,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of the conversation, with one BOS where the model wants it.

        `kept[i]`: the ids that stand for answer `messages[i]` instead of its text; ids that end a
        generation are left off, the template writes its own. Where a template drops the reasoning of
        old answers, the ids behind it are used. TemplateError names a bad role.
        """
        options = _options(add_generation_prompt, enable_thinking, tools)
        return self._prompt(messages, kept, options).ids

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        kept: Mapping[int, KeptAnswer] = _NOTHING_KEPT,
        thinking: Thinking = _BY_ITSELF,
        tools: Sequence[Mapping[str, Any]] | None = None,
        strict: bool = False,
    ) -> Prompt:
        """As `encode`, for the next answer, with what whoever shows that answer must know.

        thinking: of this the template is told what it understands, see `thinking_support`; strict:
        TemplateError where the file's template fails, instead of another layout and a warning.
        """
        options = _options(True, None, tools) | self._thinking_variables.of(thinking)
        return self._prompt(messages, kept, options, strict=strict)

    @property
    def thinking_support(self) -> ThinkingSupport:
        """What the template understands of a choice how much to think. It is found out once."""
        return self._thinking_variables.support(has_thoughts=self._tells_format)

    @cached_property
    def _thinking_variables(self) -> ThinkingVariables:
        return thinking_variables(self._source)

    @cached_property
    def _ending(self) -> tuple[TextDelta, ...]:
        ids = self._tokenizer.encode(self.answer_format.ending, special=True, first=False)
        return tuple(replayed(self._tokenizer, ids))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as the template writes it, for display."""
        options = _options(add_generation_prompt, enable_thinking, tools)
        rendered, _ = self._render_safely(messages, _NOTHING_KEPT, options)
        return rendered.shield.restore(rendered.text)

    def _prompt(
        self,
        messages: Sequence[Message],
        kept: Mapping[int, KeptAnswer],
        options: dict[str, Any],
        *,
        strict: bool = False,
    ) -> Prompt:
        rendered, warning = self._render_safely(messages, kept, options, strict=strict)
        opened = self.answer_format.opened_by(rendered.text)
        ids = self._with_bos(self._to_ids(rendered))
        return Prompt(ids, opened, warning, self.answer_format, self._ending)

    def _compile(self, text: str) -> Template:
        try:
            return FileTemplate(text, self._variables, self.answer_format)
        except TemplateError as error:
            self.warning = self._failed(error, "is used instead")
            return self._default

    def _failed(self, error: TemplateError, instead: str) -> str:
        # Templates choose these words, and they are shown in terminals.
        cause = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(error))
        return f"{self._label}: the chat template failed ({cause}); {self._default.name} {instead}."

    def _render_safely(
        self,
        messages: Sequence[Message],
        kept: Mapping[int, KeptAnswer],
        options: dict[str, Any],
        *,
        strict: bool = False,
    ) -> tuple[_Rendered, str | None]:
        """Rendered by the file's template, else, unless `strict`, by the default one and why."""
        turns = [turn_of(message, index) for index, message in enumerate(messages)]
        try:
            return self._render_kept(self._source, turns, kept, options), None
        except TemplateError as error:
            cause = error
        # Some templates check calls against results: those of an answer that is kept as ids they do not see.
        silent = {index: answer for index, answer in kept.items() if not messages[index].tool_calls}
        if silent != kept and not isinstance(cause, TemplateLimitError):
            try:
                return self._render_kept(self._source, turns, silent, options), None
            except TemplateError as error:
                cause = error
        merged = merge_neighbours(turns, kept)
        if merged != turns and not isinstance(cause, TemplateLimitError):
            try:
                return self._render_kept(self._source, merged, kept, options), None
            except TemplateError as error:
                cause = error
        if strict:
            raise cause
        warning = self._failed(cause, "was used for this answer")
        log.warning("%s", warning)
        return self._render_kept(self._default, turns, kept, options), warning

    def _render_kept(
        self, source: Template, turns: list[Turn], kept: Mapping[int, KeptAnswer], options: dict[str, Any]
    ) -> _Rendered:
        """Render with kept answers; those that the template cuts up are rendered as text instead."""
        if not source.supports_system:
            turns = fold_system(turns)
        kept = {turn.index: kept[turn.index] for turn in turns if turn.index in kept}
        while True:
            rendered, lost = self._render_once(source, turns, kept, options)
            if not lost:
                return rendered
            kept = {index: answer for index, answer in kept.items() if index not in lost}

    def _render_once(
        self, source: Template, turns: list[Turn], kept: Mapping[int, KeptAnswer], options: dict[str, Any]
    ) -> tuple[_Rendered, set[int]]:
        shield = Shield(self._signals, _all_texts(source, turns, options))
        marks = {index: (shield.mark(), shield.mark()) for index in kept}
        messages = [self._variables_of(turn, source, shield, marks.get(turn.index), kept) for turn in turns]
        hidden = {**options, "tools": shield.hide(options["tools"])} if "tools" in options else options
        text = _rendered(source, messages, hidden, shield)
        lost = {index for index, (answer, _) in marks.items() if text.count(answer) != 1}
        answers: dict[str, tuple[int, ...]] = {}
        for index, (answer, thought) in marks.items():
            if index not in lost:
                text, ids = self._kept.splice(text, kept[index], answer, thought, source.inline_reasoning)
                answers[answer] = ids
        return _Rendered(text, shield, answers), lost

    def _variables_of(
        self,
        turn: Turn,
        source: Template,
        shield: Shield,
        marks: tuple[str, str] | None,
        kept: Mapping[int, KeptAnswer],
    ) -> dict[str, Any]:
        """The dictionary that the template sees for one message."""
        key = self.answer_format.thought_key
        if marks:
            message = say(turn.role, marks[0])
            if self._kept.has_thought(kept[turn.index]) and not source.inline_reasoning:
                message[key] = marks[1]
            return message
        message = {**say(turn.role, shield.hide(turn.content)), **_about_tools(turn, shield)}
        if not turn.reasoning:
            return message
        reasoning = shield.hide(turn.reasoning)
        if source.inline_reasoning:
            thought = self.answer_format.thought.replace("{}", reasoning)
            return {**message, "content": thought + message["content"]}
        return {**message, key: reasoning}

    def _to_ids(self, rendered: _Rendered) -> list[int]:
        out: list[int] = []
        first = True
        marks = "".join(rendered.answers)
        border = re.compile(f"([{re.escape(marks)}])") if marks else None
        for part in self._tokenizer.split_special(rendered.text):
            if isinstance(part, int):
                out.append(part)
                first = True
                continue
            for piece in border.split(part) if border else [part]:
                if piece in rendered.answers:
                    out += rendered.answers[piece]
                elif piece:
                    out += self._tokenizer.encode_content(rendered.shield.restore(piece), first=first)
                first = first and not piece
        return out

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_id
        if bos is None or not self._tokenizer.add_bos:
            return ids
        while ids[:2] == [bos, bos]:
            del ids[0]
        return ids if ids[:1] == [bos] else [bos, *ids]


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _rendered(
    source: Template, messages: list[dict[str, Any]], options: dict[str, Any], shield: Shield
) -> str:
    """The template's text; TemplateError, whose words are readable, when there is none."""
    try:
        text = source.render(messages, **options)
    except TemplateError as error:
        raise type(error)(shield.restore(str(error))) from error
    if not text:
        raise TemplateError("it renders nothing")
    return text


def _options(
    add_generation_prompt: bool, enable_thinking: bool | None, tools: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
    if enable_thinking is not None:
        options["enable_thinking"] = enable_thinking
    if tools is not None:
        options["tools"] = [dict(tool) for tool in tools]
    return options


def _about_tools(turn: Turn, shield: Shield) -> dict[str, Any]:
    """What a message has beside its text, by the names that templates know."""
    fields: dict[str, Any] = {}
    if turn.tool_calls:
        fields["tool_calls"] = [_said_call(call, shield) for call in turn.tool_calls]
    if turn.tool_call_id:
        fields["tool_call_id"] = shield.hide(turn.tool_call_id)
    if turn.tool_name:
        fields["name"] = shield.hide(turn.tool_name)
    return fields


def _said_call(call: ToolCall, shield: Shield) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
    function = {"name": shield.hide(call.name), "arguments": shield.hide(arguments)}
    return {"id": shield.hide(call.id), "type": "function", "function": function}


def _all_texts(source: Template, turns: list[Turn], options: dict[str, Any]) -> list[str]:
    texts = [source.text, *_strings(options.get("tools"))]
    for turn in turns:
        texts += (turn.content, turn.reasoning or "", turn.tool_call_id, turn.tool_name)
        for call in turn.tool_calls:
            texts += (call.id, call.name, *_strings(call.arguments))
    return texts


def _strings(value: Any) -> Iterator[str]:
    """Every text inside lists and dictionaries, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_strings(key), *_strings(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
