"""Calls as chats keep them: whatever a model writes can be stored, sent and read again."""

import json

import pytest

from app.tools.noted import NotedCall
from engine import ToolCall


def test_a_call_comes_back_as_it_was():
    call = NotedCall.of(ToolCall("1", "read", {"path": "ä", "deep": [{"a": 1.5}]}), "files")
    assert NotedCall.read(json.loads(json.dumps(call.record))) == call
    assert call.told == ToolCall("1", "read", {"path": "ä", "deep": [{"a": 1.5}]})
    assert call.text == json.dumps(call.arguments, ensure_ascii=False, indent=2)


def test_what_cannot_be_stored_does_not_come_in():
    odd = NotedCall.of(ToolCall("\ud800", "a\ud800", {"\udc00": "\ud800"}))
    assert (odd.id, odd.name, odd.arguments) == ("?", "a?", {"?": "?"})
    assert NotedCall.of(ToolCall("1", "a", "{\ud800")).arguments == "{?"
    deep = []
    for _ in range(500):
        deep = [deep]
    assert NotedCall.of(ToolCall("1", "a", {"x": deep})).arguments == ""


@pytest.mark.parametrize(
    "record", [None, [], {}, {"name": 3}, {"name": "a", "arguments": 3}, {"name": "a", "id": 1}]
)
def test_a_record_that_is_none_is_no_call(record):
    assert NotedCall.read(record) is None
