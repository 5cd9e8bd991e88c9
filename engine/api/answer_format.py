"""How models set their reasoning apart from their answers: one table, from which each model gets its row.

Most put tags around it, some write several messages of which each says whom it is for. Tags that are
tokens of their own come through the stream as markers and count as those alone, so that no text can
pass for them; elsewhere they are looked for in the text.
"""

import re
from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TagFormat:
    """Reasoning between two tags, at an answer's beginning."""

    opens: str
    closes: str
    thought: str
    """A thought, `{}`, as it stands in the contents of old answers."""
    label: str = ""
    """What the model writes behind the opening tag, to say what is inside."""
    wrapped: tuple[str, str] | None = None
    """Tags that may stand around the answer proper."""
    anywhere: bool = False
    """Whether the tags mean something in the middle of an answer too."""
    thought_key: str = "reasoning_content"
    """Under which key templates look for the thoughts of old answers."""
    in_text: frozenset[str] = frozenset()
    """Tags that are no tokens of the model's vocabulary."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Every tag."""
        return (self.opens, self.closes, *(self.wrapped or ()))

    @property
    def opening(self) -> str:
        """What a template writes in front of a thought."""
        return self.opens + self.label.rstrip()

    @property
    def ending(self) -> str:
        """What ends a thought and begins the answer, as the model itself writes it."""
        return self.thought.partition("{}")[2] + (self.wrapped[0] if self.wrapped else "")

    def named_in(self, template: str) -> bool:
        """Whether a template tells that this is its model's format."""
        wraps = self.wrapped is None or self.wrapped[0] in template
        return wraps and (self.opens in template or self.closes in template)

    def known_to(self, special: Container[str]) -> bool:
        """Whether a vocabulary tells so."""
        return all(tag in special for tag in self.markers)

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends inside a thought."""
        return prompt.rstrip().endswith(self.opening)


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """Reasoning and answer as messages of their own: markers around a header, then the message's text."""

    starts: str
    """Begins a message; what comes before belongs to none."""
    bodies: tuple[str, ...]
    """End a header."""
    others: tuple[str, ...]
    """End a message or stand in a header."""
    for_reader: str
    """The headers, behind `starts` and with what ended them, of messages that belong to the answer."""
    opening: str
    """What a template writes between the generation prompt and a thought."""
    ending: str
    """What ends a thought and begins the answer, as the model itself writes it."""
    named_by: str
    """The marker that no other format has."""
    thought_key: str = "reasoning_content"
    thought: str = ""
    """Thoughts never stand in the contents of old answers."""
    in_text: frozenset[str] = frozenset()

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker."""
        return (self.starts, *self.bodies, *self.others)

    def named_in(self, template: str) -> bool:
        """Whether a template tells that this is its model's format."""
        return self.named_by in template

    def known_to(self, special: Container[str]) -> bool:
        """Whether a vocabulary tells so: text never stands for these markers."""
        return all(marker in special for marker in (self.starts, *self.bodies, self.named_by))

    def is_for_reader(self, header: str) -> bool:
        """Whether the message behind a header belongs to the answer."""
        own = header.rpartition(self.starts)[2]
        return re.fullmatch(self.for_reader, own, re.DOTALL) is not None

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends inside a message that is not for the reader."""
        return prompt.endswith(self.bodies) and not self.is_for_reader(prompt)


AnswerFormat = TagFormat | MessageFormat

THINK = TagFormat(
    "<think>", "</think>", "<think>\n{}\n</think>\n\n", in_text=frozenset(("<think>", "</think>"))
)
"""What is taken for the format of a model that tells none."""
_COHERE = TagFormat("<|START_THINKING|>", "<|END_THINKING|>", "<|START_THINKING|>{}<|END_THINKING|>")
_FORMATS: tuple[AnswerFormat, ...] = (
    # Harmony. Preambles of tool calls stand in "commentary" too, addressed to nobody; a model that has
    # begun a message to a tool may still go on with "final".
    MessageFormat(
        "<|start|>",
        ("<|message|>",),
        ("<|channel|>", "<|constrain|>", "<|end|>"),
        for_reader=r"(?:.*<\|channel\|>\s*final.*|(?!.* to=).*<\|channel\|>\s*commentary.*|"
        r"(?:assistant)?\s*)<\|message\|>",
        opening="<|channel|>analysis<|message|>",
        ending="<|end|><|start|>assistant<|channel|>final<|message|>",
        named_by="<|channel|>",
        thought_key="thinking",
    ),
    MessageFormat(
        "<|start|>",
        ("<|message|>",),
        ("<|eom|>",),
        for_reader=r"(?:assistant)?\s*(?:to=user)?\s*<\|message\|>",
        opening=" to=self<|message|>",
        ending="<|eom|><|start|>assistant to=user<|message|>",
        named_by="<|eom|>",
    ),
    MessageFormat(
        "<|begin|>",
        ("<|think|>", "<|content|>"),
        ("<|end|>",),
        for_reader=r"(?:assistant)?\s*<\|content\|>",
        opening="<|think|>",
        ending="<|end|><|begin|>assistant<|content|>",
        named_by="<|think|>",
        thought_key="reasoning",
    ),
    TagFormat(
        "<|channel>", "<channel|>", "<|channel>thought\n{}\n<channel|>", label="thought\n", anywhere=True
    ),
    TagFormat("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_prefix|>{}<|inner_suffix|>", anywhere=True),
    replace(_COHERE, wrapped=("<|START_TEXT|>", "<|END_TEXT|>")),
    replace(_COHERE, wrapped=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    _COHERE,
    TagFormat("[THINK]", "[/THINK]", "[THINK]{}[/THINK]"),
    TagFormat("<seed:think>", "</seed:think>", "<seed:think>{}</seed:think>"),
    TagFormat("<mm:think>", "</mm:think>", "<mm:think>{}</mm:think>"),
    TagFormat("<think:opensource>", "</think:opensource>", "<think:opensource>{}</think:opensource>"),
    replace(THINK, wrapped=("<answer>", "</answer>")),
    replace(THINK, wrapped=("<response>", "</response>")),
    THINK,
)
MARKERS = frozenset(marker for row in _FORMATS for marker in row.markers)
"""Whatever parts an answer in some format."""


def format_of(template: str, special: Container[str]) -> AnswerFormat:
    """The format of a model, from its chat template and the texts of its special tokens.

    The template decides where it names a format; else the vocabulary; else it is think tags.
    """
    row = _format_told(template, special) or THINK
    return replace(row, in_text=frozenset(tag for tag in row.markers if tag not in special))


def tells_format(template: str, special: Container[str]) -> bool:
    """Whether a model tells its format, so that it may think at all."""
    return _format_told(template, special) is not None


def _format_told(template: str, special: Container[str]) -> AnswerFormat | None:
    possible = [row for row in _FORMATS if isinstance(row, TagFormat) or row.known_to(special)]
    named = (row for row in possible if row.named_in(template))
    known = (row for row in possible if row.known_to(special))
    return next(named, None) or next(known, None)
