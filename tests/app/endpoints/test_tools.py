"""Tools at endpoints: what a server is told of them, and calls out of the parts that it sends."""

import pytest

from app.chat.conversation import Role, Status
from app.endpoints.tool_calls import MOST_CALLS, CallParts
from app.tools.results import ToolResult
from engine import ToolCall
from tests.app.driving import say, wait_until
from tests.app.endpoints.scripted import HEAD, event
from tests.app.endpoints.test_tabs import make_remote, notices, remote_tab
from tests.app.tools.scripted import ScriptedServers

__all__ = ["make_remote"]


def part(index=None, number=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"function": function} | {
        key: value for key, value in (("index", index), ("id", number)) if value is not None
    }


def put_together(*deltas):
    parts = CallParts()
    for delta in deltas:
        parts.take([delta])
    return parts.calls


@pytest.mark.parametrize(
    "deltas",
    [
        # OpenAI and vLLM: numbered, arguments in pieces.
        [
            part(0, "a1", "read", ""),
            part(0, arguments='{"path": '),
            part(0, arguments='"a"}'),
            part(1, "b2", "list", "{}"),
        ],
        # Calls that are sent at once, in turns.
        [part(0, "a1", "read"), part(1, "b2", "list"), part(0, arguments='{"path": "a"}')],
        # Without numbers, or all with the same one, and arguments as an object.
        [part(None, "a1", "read", '{"path"'), part(arguments=': "a"}'), part(None, "b2", "list", {})],
        [part(0, "a1", "read", {"path": "a"}), part(0, "b2", "list", "{}")],
    ],
)
def test_calls_are_put_together_however_servers_number_them(deltas):
    assert put_together(*deltas) == (ToolCall("a1", "read", {"path": "a"}), ToolCall("b2", "list", {}))


def test_what_is_no_call_costs_nothing():
    parts = CallParts()
    assert not any(parts.take(value) for value in (None, "x", [], [1, None]))
    assert parts.take([{"index": "x", "function": 3}]) and parts.calls == ()
    assert put_together(part(0, "a1", "read", '{"path')) == (ToolCall("a1", "read", '{"path'),)
    [unnamed] = put_together(part(0, name="read"))
    assert unnamed.id and unnamed.arguments == {}
    many = put_together(*(part(at, f"c{at}", "read") for at in range(2 * MOST_CALLS)))
    assert len(many) == MOST_CALLS


def calls(server, *deltas):
    events = [event(delta={"tool_calls": [delta]}) for delta in deltas]
    server.says(HEAD, *events, event(delta={}, finish_reason="tool_calls"), b"data: [DONE]\n\n")


async def tab_with_tools(pilot, **settings):
    """A tab of the remote model that may use the tools of a scripted server."""
    session = (await remote_tab(pilot)).active
    session.tools._servers = servers = ScriptedServers(**settings)
    session.conversation.tools = ("files",)
    return session, servers


async def test_a_call_of_a_remote_model_runs_and_the_answer_goes_on(make_remote, server):
    app = make_remote()
    calls(server, part(0, "c1", "read", '{"path"'), part(0, arguments=': "a.txt"}'))
    server.answers("It says hello.")
    async with app.run_test(size=(120, 30)) as pilot:
        session, servers = await tab_with_tools(pilot, allow=("read",))
        servers.result = ToolResult("hello")
        await say(pilot, "What is in a.txt?")
        await wait_until(pilot, lambda: len(session.conversation.path()) == 4 and not session.busy)
        assert [node.role for node in session.conversation.path()][2:] == [Role.TOOL, Role.ASSISTANT]
        assert session.conversation.path()[-1].text == "It says hello."
        assert servers.calls == [("read", {"path": "a.txt"})]
        first, second = (asked.body for asked in server.asked if "messages" in asked.body)
        assert [tool["function"]["name"] for tool in first["tools"]] == ["read", "list"]
        _, answer, result = second["messages"]
        assert answer["tool_calls"] == [
            {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
        ]
        assert result == {"role": "tool", "content": "hello", "tool_call_id": "c1"}
        assert "answers without" not in notices(app)
        # Without tools the server is told of calls in words, and of none to make.
        session.conversation.tools = ()
        server.answers("Gladly.")
        await say(pilot, "Thank you")
        await wait_until(pilot, lambda: session.conversation.path()[-1].text == "Gladly.")
        body = server.asked[-1].body
        assert "tools" not in body and {one["role"] for one in body["messages"]} == {"user", "assistant"}
    app.end_services()


async def test_a_lost_connection_runs_no_call(make_remote, server):
    app = make_remote()
    server.says(HEAD, event(delta={"tool_calls": [part(0, "c1", "read", '{"path": "a.txt"}')]}))
    async with app.run_test(size=(120, 30)) as pilot:
        session, servers = await tab_with_tools(pilot, allow=("read",))
        await say(pilot, "What is in a.txt?")
        await wait_until(pilot, lambda: session.conversation.path() and not session.busy)
        assert session.conversation.path()[-1].status is Status.ERROR and servers.calls == []
    app.end_services()


async def test_a_server_that_takes_no_tools_is_named_with_what_helps(make_remote, server):
    app = make_remote()
    server.refuses(400, '"auto" tool choice requires --enable-auto-tool-choice')
    async with app.run_test(size=(120, 30)) as pilot:
        session, _ = await tab_with_tools(pilot)
        await say(pilot, "What is in a.txt?")
        await wait_until(pilot, lambda: session.conversation.path() and not session.busy)
        error = session.conversation.path()[-1].error
        assert (
            "requires --enable-auto-tool-choice; the tools of this chat are switched off with /tools" in error
        )
    app.end_services()
