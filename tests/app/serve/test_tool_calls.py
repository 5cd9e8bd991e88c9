"""Calls of tools: found in what models write, told to clients, given back to templates."""

import json

import pytest

from app.tools.calls import CallReader, arguments_text
from engine import ToolCall
from engine.api.tool_format import tool_format_of
from tests.app.serve.scripted import events_of, said

CHAT = "/v1/chat/completions"
TOOLS = {"get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
HERMES = tool_format_of("<tool_call>")
XML = tool_format_of("<tool_call> <function=")
MISTRAL = tool_format_of("[TOOL_CALLS]")
LLAMA = tool_format_of('{"name": function name, "parameters": dictionary of argument name and its value}')
CALL = ("get_weather", {"city": "Paris"})
JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": TOOLS["get_weather"]}}

ANSWERS = [
    (HERMES, f"<tool_call>\n{JSON}\n</tool_call>", [CALL]),
    (
        HERMES,
        f"I look.\n<tool_call>{JSON}</tool_call>\n<tool_call>{JSON}</tool_call>\n",
        ["I look.", CALL, CALL],
    ),
    (HERMES, f"<tool_call>{JSON}", [CALL]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        [("f", {"a": "</tool_call>"})],
    ),
    (HERMES, "<tool_call>no JSON</tool_call> so", ["<tool_call>no JSON</tool_call>", " so"]),
    (HERMES, "a <tool is b < c\n", ["a <tool is b < c\n"]),
    (HERMES, '<tool_call>{"name": 3}</tool_call>', ['<tool_call>{"name": 3}</tool_call>']),
    (
        XML,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        [("get_weather", {"city": "New\nYork", "days": 3})],
    ),
    (XML, f"<tool_call>{JSON}</tool_call>", [CALL]),
    (MISTRAL, f"[TOOL_CALLS] [{JSON}, {JSON}]", [CALL, CALL]),
    (
        MISTRAL,
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]b[CALL_ID]x1[ARGS]{}',
        [CALL, ("b", {})],
    ),
    (MISTRAL, "Sure [TOOL] then", ["Sure [TOOL] then"]),
    (LLAMA, '{"name": "get_weather", "parameters": {"city": "Paris"}}', [CALL]),
    (
        LLAMA,
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        [("f", {}), ("g", {})],
    ),
    (LLAMA, '{"name": "Ada", "age": 36}', ['{"name": "Ada", "age": 36}']),
    (LLAMA, '{"age": 36}', ['{"age": 36}']),
    (LLAMA, "Hello.", ["Hello."]),
]


def merged(found):
    """Texts that follow one another as one, calls without their ids."""
    out = []
    for one in found:
        if isinstance(one, ToolCall):
            assert len(one.id) == 9 and one.id.isalnum()
            out.append((one.name, one.arguments))
        elif out and isinstance(out[-1], str):
            out[-1] += one
        else:
            out.append(one)
    return out


@pytest.mark.parametrize(("row", "text", "expected"), ANSWERS)
@pytest.mark.parametrize("step", [1, 5, 10_000])
def test_calls_are_found_however_they_come(row, text, expected, step):
    reader = CallReader(row, TOOLS)
    found = [one for at in range(0, len(text), step) for one in reader.push(text[at : at + step])]
    assert merged(found + reader.flush()) == merged(expected_of(expected))


def expected_of(expected):
    return [ToolCall("a" * 9, *one) if isinstance(one, tuple) else one for one in expected]


def test_text_does_not_wait_for_calls_that_may_come():
    reader = CallReader(HERMES, TOOLS)
    assert reader.push("Hello <b") == ["Hello <b"]
    assert reader.push(" <tool") == []
    assert reader.push("box") == [" <toolbox"]


def test_arguments_that_are_no_object_are_kept():
    assert arguments_text(ToolCall("a", "f", "not JSON")) == "not JSON"


@pytest.fixture
def calling(server):
    server.template.tool_format = HERMES
    server.answer(
        "Wait.",
        ("<tool_call>", "<tool_call>"),
        JSON,
        ("</tool_call>", "</tool_call>"),
        "\n<tool_call>",
        JSON,
        "</tool_call>",
    )
    return server


async def test_a_chat_calls_tools(calling):
    answer = (await calling.post(CHAT, said(tools=[TOOL]))).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Wait."
    first, second = choice["message"]["tool_calls"]
    assert first["function"]["name"] == "get_weather" and first["id"] != second["id"]
    assert json.loads(first["function"]["arguments"]) == {"city": "Paris"}
    ((_, options),) = calling.template.asked
    assert options["tools"][0]["function"]["name"] == "get_weather"


async def test_a_streamed_chat_calls_tools(calling):
    chunks = events_of(await calling.post(CHAT, said(tools=[TOOL], stream=True)))
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert json.loads(calls[1]["function"]["arguments"]) == {"city": "Paris"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_one_call_alone(calling):
    body = said(tools=[TOOL], parallel_tool_calls=False)
    (choice,) = (await calling.post(CHAT, body)).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == "tool_calls"


async def test_no_tools_are_given_where_none_may_be_called(calling):
    (choice,) = (await calling.post(CHAT, said(tools=[TOOL], tool_choice="none"))).json()["choices"]
    assert "tool_calls" not in choice["message"] and JSON in choice["message"]["content"]
    ((_, options),) = calling.template.asked
    assert options["tools"] is None


async def test_calls_and_results_reach_the_template(calling):
    call = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "sunny"},
    ]
    assert (await calling.post(CHAT, {"messages": messages, "tools": [TOOL]})).status_code == 200
    (((_, asked, result), _),) = calling.template.asked
    assert asked.tool_calls == (ToolCall("abc", "f", {"a": 1}),) and asked.content == ""
    assert (result.tool_call_id, result.tool_name, result.content) == ("abc", "f", "sunny")


async def test_old_calls_are_refused_where_a_template_takes_none(server):
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "x", "content": "b"}]
    response = await server.post(CHAT, {"messages": messages})
    assert response.status_code == 400 and "messages[1]" in response.json()["error"]["message"]
