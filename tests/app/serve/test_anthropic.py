"""Anthropic's messages."""

import json

import pytest

from engine import FinishReason, Message, ToolCall
from tests.app.serve.scripted import events_of, said
from tests.app.serve.test_tool_calls import HERMES, JSON

PATH = "/v1/messages"
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}


async def test_a_whole_message(server):
    server.answer("<think>Hm", "</think>", "Good day.")
    message = (
        await server.post(PATH, said(max_tokens=9, system=[{"type": "text", "text": "be kind"}]))
    ).json()
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "end_turn")
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "text", "text": "Good day."},
    ]
    assert message["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 4,
    }


async def test_a_streamed_message(server):
    server.template.tool_format = HERMES
    server.answer("<think>Hm", "</think>", "Good", " day.", f"<tool_call>{JSON}</tool_call>")
    events = events_of(await server.post(PATH, said(max_tokens=9, stream=True, tools=[TOOL])))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1, 2]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Good day."
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"city": "Paris"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[0]["message"]["usage"]["input_tokens"] == 3


@pytest.mark.parametrize(
    ("reason", "expected"), [(FinishReason.LENGTH, "max_tokens"), (FinishReason.STOP_STRING, "stop_sequence")]
)
async def test_why_a_message_ended(server, reason, expected):
    server.answer("Good", reason=reason)
    message = (await server.post(PATH, said(max_tokens=9, stop_sequences=["x"]))).json()
    assert message["stop_reason"] == expected
    assert server.generations[0].request.stop == ("x",)


async def test_a_failure_has_this_protocols_shape(server):
    server.answer("Good", reason=FinishReason.ERROR, error="broken")
    response = await server.post(PATH, said(max_tokens=9))
    assert response.status_code == 500
    assert response.json() == {"type": "error", "error": {"type": "api_error", "message": "broken"}}
    events = events_of(await server.post(PATH, said(max_tokens=9, stream=True)))
    assert events[-1] == response.json()


async def test_blocks_become_messages(server):
    server.template.tool_format = HERMES
    messages = [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "done"}]},
                {"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    body = {"messages": messages, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert (await server.post(PATH, body)).status_code == 200
    ((given, options),) = server.template.asked
    assert list(given) == [
        Message("user", "a"),
        Message("assistant", "b", "hm", (ToolCall("1", "f", {"x": 1}),)),
        Message("tool", "done", tool_call_id="1", tool_name="f"),
        Message("user", "c"),
    ]
    assert str(options["thinking"]) == "on"


async def test_tokens_are_counted_without_an_answer(server):
    response = await server.post("/v1/messages/count_tokens", said("one two"))
    assert response.json() == {"input_tokens": 3} and server.generations == []


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(server, more, word):
    response = await server.post(PATH, said(max_tokens=9) | more)
    assert response.status_code == 400
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(word)


async def test_a_model_that_is_not_there(server):
    response = await server.post(PATH, said(max_tokens=9) | {"model": "claude"})
    assert response.status_code == 404 and response.json()["error"]["type"] == "not_found_error"
