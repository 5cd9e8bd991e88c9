"""What the protocols have in common: what they refuse, tools, usage."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.serve.http.errors import ApiError
from app.serve.http.fields import Fields
from app.serve.requests.answer import Ended, Ending
from app.serve.requests.served import Served
from engine import Message

_REFUSED: Mapping[str, tuple[object, ...]] = {
    "prompt_logprobs": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
    "mirostat": (0,),
    "typical_p": (1, 1.0),
    "dynatemp_range": (0, 0.0),
    "dry_multiplier": (0, 0.0),
    "xtc_probability": (0, 0.0),
}
"""Fields whose meaning cannot be served, of OpenAI's, vLLM's and llama.cpp's; with the values that ask for
nothing. Other fields that are not known are passed over, as those servers do."""


def refuse_unserved(fields: Fields) -> None:
    """Raise `ApiError` for a field that asks for what is not served."""
    for name, harmless in _REFUSED.items():
        fields.only(name, *harmless, why="is not served here; leave it out")


def read_tools(fields: Iterable[Fields]) -> tuple[Mapping[str, Any], ...]:
    """Tools as OpenAI's chats name them; what else stands in one is left out."""
    tools = []
    for field in fields:
        if field.text("type") not in (None, "function"):
            raise field.refuse("type", "only tools of the type function are served")
        function = field.inner("function")
        if function is None:
            raise field.refuse("function", "is missing")
        parameters = function.inner("parameters")
        tools.append(make_tool(function, parameters, strict=function.flag("strict")))
    return tuple(tools)


def make_tool(named: Fields, parameters: Fields | None, *, strict: bool | None = None) -> Mapping[str, Any]:
    """A tool as templates want it; strict: whether its calls are held to its parameters."""
    function: dict[str, Any] = {
        "name": named.need_text("name"),
        "description": named.text("description") or "",
        "parameters": {"type": "object", "properties": {}} if parameters is None else parameters.values,
    }
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def check_tools(served: Served, tools: Sequence[object], messages: Sequence[Message]) -> None:
    """Raise `ApiError` where the model can be told of no tools."""
    if served.model.template.tool_format is not None:
        return
    if tools:
        raise ApiError(
            f"tools: the chat template of {served.id} takes none, or its model calls them in a way that is "
            "not known here; leave them out or choose another model",
            field="tools",
        )
    for index, message in enumerate(messages):
        if message.tool_calls or message.role == "tool":
            raise ApiError(
                f"messages[{index}]: the chat template of {served.id} takes no tools", field="messages"
            )


def text_of_parts(fields: Fields, key: str, kinds: Sequence[str] = ("text",)) -> str:
    """A message's text, of its parts too; raises `ApiError` for images and the like."""
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for part in fields.objects(key):
        kind = part.text("type")
        if kind not in kinds:
            raise part.refuse("type", f"{kind!r} is not served, only text is")
        texts.append(part.need_text("text"))
    return "\n".join(texts)


def failure(ended: Ended, served: Served) -> ApiError:
    """The error for an answer that failed."""
    return ApiError(served.without_paths(ended.error), 500)


def finish_reason(ending: Ending) -> str:
    """How OpenAI's chats call an ending."""
    if ending is Ending.TOOL_CALLS:
        return "tool_calls"
    return "length" if ending is Ending.LENGTH else "stop"


def new_id(prefix: str) -> str:
    """An id for an answer or a part of one."""
    return f"{prefix}{secrets.token_hex(12)}"


def usage_of(prompt_tokens: int, ended: Sequence[Ended]) -> dict[str, Any]:
    """Tokens as OpenAI's chats count them."""
    written = sum(one.completion_tokens for one in ended)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": max((one.cached_tokens for one in ended), default=0)},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in ended)},
    }
