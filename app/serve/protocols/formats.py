"""What formats of answers requests ask for, by the names that OpenAI, Anthropic, vLLM and llama.cpp have."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.serve.http.fields import Fields
from app.serve.requests.held import ANY_OBJECT, Held, held_to_calls
from engine import ConstraintKind

_GUIDED = {
    "guided_json": ConstraintKind.JSON_SCHEMA,
    "guided_regex": ConstraintKind.REGEX,
    "guided_grammar": ConstraintKind.GRAMMAR,
    "json_schema": ConstraintKind.JSON_SCHEMA,
    "grammar": ConstraintKind.GRAMMAR,
}
_STRUCTURED = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "grammar": ConstraintKind.GRAMMAR,
}


def read_held(fields: Fields) -> Held | None:
    """From `response_format` and from the fields of vLLM and llama.cpp; raises `ApiError` for two of them."""
    found = [_response_format(fields.inner("response_format"))]
    found += [_text_or_schema(fields, name, kind) for name, kind in _GUIDED.items()]
    found.append(_choice(fields, "guided_choice"))
    structured = fields.inner("structured_outputs")
    if structured is not None:
        found += [_text_or_schema(structured, name, kind) for name, kind in _STRUCTURED.items()]
        found.append(_choice(structured, "choice"))
        if structured.flag("json_object"):
            found.append(Held(ConstraintKind.JSON_SCHEMA, ANY_OBJECT, structured.name("json_object")))
    wanted = [held for held in found if held is not None]
    if len(wanted) > 1:
        raise fields.refuse(wanted[1].field, f"cannot be held together with {wanted[0].field}")
    return wanted[0] if wanted else None


def read_format(wanted: Fields | None) -> Held | None:
    """Of responses and of Anthropic's messages, where the schema stands beside the type."""
    if wanted is None or wanted.text("type") == "text":
        return None
    wanted.only("type", "json_object", "json_schema", why="only text, json_object and json_schema are served")
    if wanted.get("type") == "json_object":
        return Held(ConstraintKind.JSON_SCHEMA, ANY_OBJECT, wanted.name("type"))
    return _schema(wanted)


def _response_format(wanted: Fields | None) -> Held | None:
    if wanted is not None and wanted.get("type") == "json_schema":
        inner = wanted.inner("json_schema")
        if inner is None:
            raise wanted.refuse("json_schema", "is missing")
        return _schema(inner)
    return read_format(wanted)


def _schema(fields: Fields) -> Held:
    if not fields.has("schema"):
        raise fields.refuse("schema", "is missing")
    schema = fields.inner("schema")
    assert schema is not None
    return Held(ConstraintKind.JSON_SCHEMA, json.dumps(schema.values), fields.name("schema"))


def _text_or_schema(fields: Fields, name: str, kind: ConstraintKind) -> Held | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if kind is ConstraintKind.JSON_SCHEMA and not isinstance(value, str):
        schema = fields.inner(name)
        assert schema is not None
        return Held(kind, json.dumps(schema.values), fields.name(name))
    return Held(kind, fields.need_text(name), fields.name(name))


def _choice(fields: Fields, name: str) -> Held | None:
    choices = fields.many(name)
    if not choices:
        return None
    if not all(isinstance(one, str) and one for one in choices):
        raise fields.refuse(name, "must be strings that are not empty")
    grammar = "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)
    return Held(ConstraintKind.GRAMMAR, grammar, fields.name(name))


def held_answer(held: Held | None, calls: Held | None, tools: Sequence[Mapping[str, Any]]) -> Held | None:
    """What an answer is held to: a format, or calls of the tools that there are."""
    if held is None or (calls is not None and calls.kind is ConstraintKind.CALLS):
        # An answer that must be a call has no text that a format could be about.
        return calls
    return replace(held, calls=held_to_calls(tools, "tools", forced=True)) if tools else held


def read_choice(fields: Fields, tools: Sequence[Mapping[str, Any]]) -> Held | None:
    """`tool_choice` of OpenAI's chats and responses: a word, or a function by its name."""
    choice = fields.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return held_to_calls(tools, "tool_choice", forced=False)
    if choice == "required":
        return held_to_calls(tools, "tool_choice", forced=True)
    if not isinstance(choice, dict):
        raise fields.refuse("tool_choice", "only auto, none, required and a function are served")
    named = fields.inner("tool_choice")
    assert named is not None
    named.only("type", "function", why="only a function is served")
    function = named.inner("function") or named
    return held_to_calls(tools, function.name("name"), forced=True, name=function.need_text("name"))


def read_anthropic_choice(fields: Fields, tools: Sequence[Mapping[str, Any]]) -> Held | None:
    """`tool_choice` of Anthropic's messages."""
    choice = fields.inner("tool_choice")
    if choice is None:
        return held_to_calls(tools, "tool_choice", forced=False)
    choice.only("type", "auto", "none", "any", "tool", why="only auto, none, any and tool are served")
    kind = choice.get("type")
    name = choice.need_text("name") if kind == "tool" else None
    field = choice.name("type" if name is None else "name")
    return held_to_calls(tools, field, forced=kind in ("any", "tool"), name=name)
