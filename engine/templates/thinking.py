"""What a chat template understands of thinking: found out by rendering it with the usual variables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.api.errors import TemplateError
from engine.api.thinking import EFFORTS, OFF, ON, Thinking, ThinkingSupport
from engine.templates.file_template import Template, say

Variables = Mapping[str, Any]

_SWITCHES = ("enable_thinking", "thinking", "enable_reasoning", "reasoning")
"""Variables that are true or false."""
_EFFORT, _NO_EFFORT = "reasoning_effort", "none"
_BUDGETS = ("thinking_budget", "reasoning_budget")
_QUOTED_NONE = re.compile(rf"""["']{_NO_EFFORT}["']""")


@dataclass(frozen=True, slots=True)
class ThinkingVariables:
    """The variables by which a template takes a choice; a choice without any changes nothing."""

    levels: Mapping[str, Variables] = field(default_factory=dict)
    budget: str | None = None

    def of(self, thinking: Thinking) -> dict[str, Any]:
        """The variables that say a choice to the template."""
        found = dict(self.levels.get(thinking.level, {}))
        if self.budget is not None and thinking.budget is not None:
            found[self.budget] = thinking.budget
        return found

    def support(self, *, has_thoughts: bool) -> ThinkingSupport:
        """What is offered of it."""
        efforts = tuple(level for level in EFFORTS if level in self.levels)
        return ThinkingSupport(OFF in self.levels, efforts, has_thoughts)


def thinking_variables(template: Template) -> ThinkingVariables:
    """Find the variables to which a template gives a meaning: those that change what it renders."""
    text = template.text
    levels: dict[str, Variables] = {}
    switch = next((name for name in _SWITCHES if name in text and _differ(template, name, True, False)), None)
    if switch is not None:
        levels |= {ON: {switch: True}, OFF: {switch: False}}
    if _EFFORT in text:
        levels |= {effort: {_EFFORT: effort} for effort in _efforts(template)}
        if switch is None and _QUOTED_NONE.search(text) and _differ(template, _EFFORT, _NO_EFFORT, "high"):
            levels[OFF] = {_EFFORT: _NO_EFFORT}
    budget = next((name for name in _BUDGETS if name in text and _differ(template, name, 512, 1024)), None)
    return ThinkingVariables(levels, budget)


def _efforts(template: Template) -> list[str]:
    """Efforts that are rendered, where they make a difference."""
    texts = {effort: _rendered(template, {_EFFORT: effort}) for effort in EFFORTS}
    possible = [effort for effort, text in texts.items() if text is not None]
    plain = _rendered(template, {})
    return possible if {texts[effort] for effort in possible} - {plain} else []


def _differ(template: Template, name: str, *values: object) -> bool:
    texts = [_rendered(template, {name: value}) for value in values]
    return None not in texts and len(set(texts)) > 1


def _rendered(template: Template, variables: Variables) -> str | None:
    """A short conversation; None where the template refuses these variables."""
    try:
        return template.render([say("user", "a")], add_generation_prompt=True, **variables)
    except TemplateError:
        return None
