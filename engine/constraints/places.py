"""Where a constraint is wrong, in words for whoever wrote it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.api.constraint import Constraint, ConstraintKind

_LISTING = re.compile(r"^(?:at )?(\d+)\((\d+)\): ", re.MULTILINE)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else")
_DEEPEST = 64


def find_place(constraint: Constraint, message: str) -> tuple[str, str]:
    """(place, why) of what llguidance refuses with a message."""
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        return _narrowed("", json.loads(constraint.text), message)
    if constraint.kind in (ConstraintKind.CALLS, ConstraintKind.TOOLS):
        for index, tool in enumerate(json.loads(constraint.text)):
            parameters = tool["function"].get("parameters")
            if isinstance(parameters, dict) and _refused(parameters, lenient=True):
                place = f"[{index}].function.parameters"
                return _narrowed(place, parameters, message, lenient=True)
    found = _LISTING.match(message)
    own = found is not None and constraint.kind is ConstraintKind.GRAMMAR
    place = f"line {found[1]}, column {found[2]}" if found is not None and own else ""
    return place, _short(_LISTING.sub("", message))


def _narrowed(place: str, schema: Any, message: str, *, lenient: bool = False) -> tuple[str, str]:
    """The innermost schema that is refused by itself."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    why = _refused(schema, lenient=lenient) or message
    for _ in range(_DEEPEST):
        for name, inner in _inner(schema):
            alone = {**inner, **definitions} if isinstance(inner, dict) else inner
            if cause := _refused(alone, lenient=lenient):
                place, schema, why = f"{place}.{name}" if place else name, inner, cause
                break
        else:
            break
    return place, _short(why)


def _inner(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for key in _MAPS:
        value = schema.get(key)
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
    for key in _LISTS:
        value = schema.get(key)
        if isinstance(value, list):
            yield from ((f"{key}[{index}]", inner) for index, inner in enumerate(value))
    yield from ((key, schema[key]) for key in _SINGLE if isinstance(schema.get(key), dict))


def _refused(schema: Any, *, lenient: bool) -> str:
    """Why; empty where it is none to refuse."""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"lenient": lenient})
    except ValueError as error:
        return str(error)
    wrong, said = LLMatcher.validate_grammar_with_warnings(grammar)
    return said[0] if wrong else ""


def _short(message: str) -> str:
    """The first line, and what a regular expression's parser says at the end of its own."""
    first, *more = message.strip().splitlines() or [""]
    last = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    return f"{first.rstrip(': ')}: {last}" if last else first
