"""Grammars of calls of tools, in the form that a model has been taught."""

import json
from collections.abc import Mapping
from typing import Any

from engine.api.constraint import Constraint, ConstraintError, ConstraintKind
from engine.api.tool_format import ARGUMENTS_MARK, CALL_ID_MARK, CallStyle, ToolFormat
from engine.constraints.rules import Rules, bounded

_DEFINITIONS = ("$defs", "definitions")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def add_calls(rules: Rules, constraint: Constraint) -> None:
    """Add `answer`: calls alone, or text with calls in it."""
    row, calls = _row(constraint), held_calls(rules, constraint, constraint.text)
    if constraint.kind is ConstraintKind.CALLS:
        rules.add("answer", calls)
        return
    rules.add("free", "/(?s:.+)/")
    rules.add("calls", calls)
    # A call that no mark begins could not be told from text.
    rules.add("answer", f"free? (({calls}) free?)*" if not row.bare else "free? | calls")


def held_calls(rules: Rules, constraint: Constraint, text: str) -> str:
    """Calls of the tools of a list; returns what rules call them."""
    tools = _tools(text)
    if not tools:
        raise ConstraintError("", "there are no tools to call")
    return _calls(rules, _row(constraint), tools)


def _row(constraint: Constraint) -> ToolFormat:
    if constraint.tool_format is None:
        raise ConstraintError("", "calls are held to the tools of a request, in the model's own form")
    return constraint.tool_format


def _tools(text: str) -> list[Mapping[str, Any]]:
    try:
        return [tool["function"] for tool in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConstraintError("", f"is no JSON list of tools: {error}") from error


def _calls(rules: Rules, row: ToolFormat, tools: list[Mapping[str, Any]]) -> str:
    if row.style is CallStyle.XML:
        return _xml(rules, row, tools)
    key = "parameters" if row.bare else "arguments"
    objects = [
        rules.grammar(f"call_{index}", json_schema=bounded(_object_schema(tool, key), lenient=True))
        for index, tool in enumerate(tools)
    ]
    rules.add("object", " | ".join(objects))
    opens = rules.literal(row.opens)
    if row.style is CallStyle.NAMED:
        rules.add("list", '"[" object (", " object)* "]"')
        return f"{opens} list | {_named(rules, opens, tools)}"
    if row.bare:
        return f'object (";" {rules.space()} object)*'
    one = f"{opens} {rules.space()} object {rules.space()} {rules.literal(row.closes)}"
    return f"({one}) ({rules.space()} {one})*"


def _object_schema(tool: Mapping[str, Any], key: str) -> dict[str, Any]:
    """`{"name": …, "arguments": {…}}`; what its parameters refer to stands at the root again."""
    parameters = _parameters(tool)
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, key: parameters},
        "required": ["name", key],
        "additionalProperties": False,
        **_definitions(parameters),
    }


def _named(rules: Rules, opens: str, tools: list[Mapping[str, Any]]) -> str:
    mark, call_id = rules.literal(ARGUMENTS_MARK), rules.literal(CALL_ID_MARK)
    rules.add("ID", "/[a-zA-Z0-9]{9}/")
    one = []
    for index, tool in enumerate(tools):
        schema = bounded(_parameters(tool), lenient=True)
        given = rules.grammar(f"named_{index}", json_schema=schema)
        one.append(f"{opens} {json.dumps(tool['name'])} ({call_id} ID)? {mark} {given}")
    rules.add("named", " | ".join(one))
    return "named+"


def _xml(rules: Rules, row: ToolFormat, tools: list[Mapping[str, Any]]) -> str:
    """`<function=…>` around `<parameter=…>`: strings as they are, all else as JSON."""
    functions = []
    for index, tool in enumerate(tools):
        parameters = _parameters(tool)
        wanted, properties = parameters.get("required", []), parameters.get("properties", {})
        parts = []
        for number, (name, schema) in enumerate(properties.items()):
            given = _xml_parameter(rules, f"value_{index}_{number}", name, schema, _definitions(parameters))
            parts.append(f"({given})" if name in wanted else f"({given})?")
        begin, end = f"<function={tool['name']}>\n", "</function>"
        functions.append(" ".join((rules.literal(begin), *parts, rules.literal(end))))
    rules.add("function", " | ".join(functions))
    opens, closes, space = rules.literal(row.opens), rules.literal(row.closes), rules.space()
    rules.add("call", f"{opens} {space} function {space} {closes}")
    return f"call ({space} call)*"


def _xml_parameter(rules: Rules, rule: str, name: str, schema: Any, definitions: Mapping[str, Any]) -> str:
    begin, end = rules.literal(f"<parameter={name}>\n"), "\n</parameter>\n"
    text = isinstance(schema, dict) and schema.get("type") == "string" and "enum" not in schema
    if text:
        return f"{begin} {rules.up_to(end)}"
    whole = {**schema, **definitions} if isinstance(schema, dict) else schema
    given = rules.grammar(rule, json_schema=bounded(whole, lenient=True))
    return f"{begin} {given} {rules.literal(end)}"


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("parameters") or _NO_PARAMETERS


def _definitions(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: parameters[key] for key in _DEFINITIONS if key in parameters}
