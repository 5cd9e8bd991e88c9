"""OpenAI's responses."""

import json

import pytest

from engine import FinishReason, Message, ToolCall
from tests.app.serve.scripted import events_of, joined
from tests.app.serve.test_tool_calls import HERMES, JSON

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}


async def test_a_whole_response(server):
    server.answer("<think>Hm", "</think>", "Good day.")
    response = (await server.post(PATH, {"input": "hello", "instructions": "be kind"})).json()
    assert (response["object"], response["status"]) == ("response", "completed")
    thought, message = response["output"]
    assert thought["type"] == "reasoning" and thought["content"][0]["text"] == "Hm"
    assert message["content"][0] == {
        "type": "output_text",
        "text": "Good day.",
        "annotations": [],
        "logprobs": [],
    }
    assert response["usage"]["output_tokens"] == 4
    ((messages, _),) = server.template.asked
    assert [(one.role, one.content) for one in messages] == [("system", "be kind"), ("user", "hello")]


async def test_a_streamed_response(server):
    server.template.tool_format = HERMES
    server.answer("<think>Hm", "</think>", "Good", " day.", f"<tool_call>{JSON}</tool_call>")
    events = events_of(await server.post(PATH, {"input": "hello", "stream": True, "tools": [TOOL]}))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed"
    assert (
        joined(events, lambda one: one["type"] == "response.output_text.delta" and one["delta"])
        == "Good day."
    )
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert all(item["status"] == "in_progress" for item in added)
    assert events[-1]["response"]["output"] == done
    assert done[0]["content"][0]["text"] == "Hm" and done[1]["content"][0]["text"] == "Good day."
    assert json.loads(done[2]["arguments"]) == {"city": "Paris"}
    places = {event["item_id"]: event["output_index"] for event in events if "item_id" in event}
    assert places == {item["id"]: index for index, item in enumerate(done)}


async def test_a_response_that_is_cut_off_and_one_that_fails(server):
    server.answer("Good", reason=FinishReason.LENGTH)
    response = (await server.post(PATH, {"input": "hello"})).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    server.answer("Good", reason=FinishReason.ERROR, error="the file is damaged")
    last = events_of(await server.post(PATH, {"input": "hello", "stream": True}))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["message"] == "the file is damaged"


async def test_items_become_messages(server):
    server.template.tool_format = HERMES
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "2", "output": "done"},
        {"role": "user", "content": "c"},
    ]
    assert (await server.post(PATH, {"input": items})).status_code == 200
    ((messages, _),) = server.template.asked
    calls = (ToolCall("1", "f", {"x": 1}), ToolCall("2", "g", {}))
    assert list(messages) == [
        Message("user", "a"),
        Message("assistant", "b", "hm", calls),
        Message("tool", "done", tool_call_id="2", tool_name="g"),
        Message("user", "c"),
    ]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input": None}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 2}, "n"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(server, more, field):
    response = await server.post(PATH, {"input": "hello"} | more)
    assert response.status_code == 400 and response.json()["error"]["param"] == field
