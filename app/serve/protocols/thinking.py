"""How much a request has the model think, from each protocol's words to the choices that chats have."""

from app.serve.http.fields import Fields
from app.serve.requests.served import Served
from engine import Thinking

_EFFORTS = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def read_thinking(fields: Fields, served: Served) -> Thinking:
    """Of OpenAI's chats: `reasoning_effort`, `reasoning`, and what vLLM gives the chat template."""
    kwargs = fields.inner("chat_template_kwargs")
    if kwargs is None:
        return read_reasoning(fields, served)
    for name in kwargs.values:
        if name not in ("enable_thinking", "reasoning_effort", "thinking_budget"):
            raise kwargs.refuse(name, "is not served; enable_thinking, reasoning_effort, thinking_budget are")
    effort, wanted = _effort(kwargs, "reasoning_effort"), kwargs.flag("enable_thinking")
    level = effort or {True: "on", False: "off", None: None}[wanted] or _effort(fields, "reasoning_effort")
    return _fitted(level, _budget(kwargs, "thinking_budget"), served)


def read_reasoning(fields: Fields, served: Served) -> Thinking:
    """Of responses: `reasoning.effort`, and OpenRouter's `reasoning.max_tokens`."""
    reasoning = fields.inner("reasoning")
    if reasoning is None:
        return _fitted(_effort(fields, "reasoning_effort"), None, served)
    return _fitted(_effort(reasoning, "effort"), _budget(reasoning, "max_tokens"), served)


def read_budget(fields: Fields, served: Served) -> Thinking:
    """Of Anthropic's messages: `thinking`, and `output_config.effort`."""
    thinking, output = fields.inner("thinking"), fields.inner("output_config")
    effort = _effort(output, "effort") if output is not None else None
    if thinking is None:
        return _fitted(effort, None, served)
    kind = thinking.text("type")
    level = {"enabled": effort or "on", "disabled": "off"}.get(kind or "", effort)
    return _fitted(level, _budget(thinking, "budget_tokens") if kind == "enabled" else None, served)


def _effort(fields: Fields, name: str) -> str | None:
    effort = fields.text(name)
    if effort is not None and effort not in _EFFORTS:
        raise fields.refuse(name, f"{effort[:40]!r} is not one of {', '.join(_EFFORTS)}")
    return None if effort is None else _EFFORTS[effort]


def _budget(fields: Fields, name: str) -> int | None:
    budget = fields.whole(name)
    if budget is not None and budget < 1:
        raise fields.refuse(name, f"{budget} is not at least 1")
    return budget


def _fitted(level: str | None, budget: int | None, served: Served) -> Thinking:
    """The part of it that has an effect with this model; any effort means thinking where there are none."""
    support = served.model.template.thinking_support
    if level in ("low", "medium", "high") and level not in support.choices:
        level = "on"
    if level == "off":
        budget = None
    return support.fitted(Thinking(level or "auto", budget))
