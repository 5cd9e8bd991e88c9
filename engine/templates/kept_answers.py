"""Putting the ids that a model sampled for old answers into a rendered conversation."""

import re
from collections.abc import Container

from engine.api.answer_format import AnswerFormat, MessageFormat
from engine.templates.turns import KeptAnswer
from engine.tokenizer.tokenizer import Tokenizer

_LOOKED_AT = 16
"""Ids at the beginning of an answer in which an opening tag is looked for."""


class KeptAnswers:
    """Says for each kept answer which of its ids stand for what a template rendered."""

    def __init__(self, tokenizer: Tokenizer, answer_format: AnswerFormat) -> None:
        self._tokenizer = tokenizer
        self._format = answer_format
        self._wrap: tuple[str, ...] = ()
        ends: tuple[str, ...] = ()
        if isinstance(answer_format, MessageFormat):
            ends = answer_format.others
        elif answer_format.wrapped:
            self._wrap, ends = answer_format.wrapped[:1], answer_format.wrapped[1:]
        self._ends = tokenizer.eog_ids | {i for i, text in tokenizer.markers.items() if text in ends}

    def has_thought(self, kept: KeptAnswer) -> bool:
        """Whether reasoning stands in front of the answer proper, and not its marks alone."""
        first = self._tokenizer.markers.get(kept.ids[0]) if kept.ids else None
        return kept.reasoning_ids > 0 and first not in self._wrap

    def splice(
        self, text: str, kept: KeptAnswer, answer: str, thought: str, inline: bool
    ) -> tuple[str, tuple[int, ...]]:
        """Rendered text in which `answer` alone stands for the kept ids, and those ids.

        `answer` and `thought` stand for the two parts; inline: a template has both in the contents.
        """
        if not kept.reasoning_ids or inline:
            return text.replace(thought, ""), _without(self._tokenizer.eog_ids, kept.ids)
        ids = _without(self._ends, kept.ids)
        if text.count(thought) == 1 and text.index(thought) < text.index(answer):
            opening = rf"(?:{re.escape(self._format.opening)}\s*)?" if self._has_opening(ids) else ""
            return re.sub(f"{opening}{thought}.*?{answer}", answer, text, flags=re.DOTALL), ids
        return text.replace(thought, ""), self._without_space(ids[kept.reasoning_ids :])

    def _has_opening(self, ids: tuple[int, ...]) -> bool:
        """Whether the ids hold what begins a thought; else the generation prompt has written it."""
        if isinstance(self._format, MessageFormat):
            return True
        begin = self._tokenizer.decode(ids[:_LOOKED_AT], special=True)
        return begin.lstrip().startswith(self._format.opens)

    def _without_space(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        tokenizer, begin = self._tokenizer, 0
        while begin < len(ids) and not (
            tokenizer.token_bytes(ids[begin]).strip() or tokenizer.is_control(ids[begin])
        ):
            begin += 1
        return ids[begin:]


def _without(ends: Container[int], ids: tuple[int, ...]) -> tuple[int, ...]:
    """Ids without those that end an answer: the template writes its own."""
    end = len(ids)
    while end and ids[end - 1] in ends:
        end -= 1
    return ids[:end]
