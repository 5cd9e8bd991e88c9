"""Servers of tools as processes: what they offer and give back, and every way in which they may misbehave."""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.settings.servers.tool_servers import ToolServer
from app.tools import stdio
from app.tools.server import Server
from app.tools.servers import ToolServers
from app.tools.state import State

HERE = Path(__file__).parent


def raw(*args, **more):
    return ToolServer(sys.executable, ("-S", str(HERE / "raw_server.py"), *map(str, args)), **more)


async def server_of(settings):
    server = Server("raw", settings)
    return server, await server.start()


@pytest.fixture(autouse=True)
def quick_ends(monkeypatch):
    monkeypatch.setattr(stdio, "_LEAVE_SECONDS", 0.2)


async def test_tools_are_listed_and_give_texts(monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    server, state = await server_of(raw(env=(("TOKEN", "t"),)))
    try:
        assert state.state is State.READY and [tool.name for tool in state.tools][:2] == ["echo", "pictures"]
        assert state.left_out == ("odd name",)
        assert (await server.call("echo", {"text": "a\nb"})).text == "a\nb"
        pictures = (await server.call("pictures", {})).text
        assert pictures == (
            "seen\n[image left out: image/png, 3 kB]\n[resource notes: file:///notes]\ninside\n"
            "[resource left out: x/y]"
        )
        assert json.loads((await server.call("structured", {})).text) == {"degrees": 21}
        seen = json.loads((await server.call("environment", {})).text)
        assert seen["TOKEN"] == "t" and "SECRET" not in seen and "PATH" in seen
    finally:
        await server.stop()
    assert server.seen.state is State.OFF


async def test_what_goes_wrong_in_a_call_is_its_result():
    server, _ = await server_of(raw(most_text="8 B"))
    try:
        await call_that_hangs(server)
        failed = await server.call("fails", {})
        assert failed.failed and failed.text == "the disk\n[cut here: 8 B of 16 B are shown]"
        refused = await server.call("refuses", {})
        assert refused.failed and refused.text == "raw refused the call: no such file"
        assert not (await server.call("echo", {"text": "on"})).failed
    finally:
        await server.stop()


async def call_that_hangs(server):
    patient = server._settings
    server._settings = replace(patient, timeout=0.05)
    hung = await server.call("hangs", {})
    assert hung.failed and hung.text == "hangs did not answer within 0.05 s; it was given up."
    server._settings = patient


async def test_arguments_are_checked_but_for_expressions_that_take_for_ever():
    server, _ = await server_of(raw())
    try:
        assert server.problem_with("echo", {"text": "a" * 60 + "!"}) is None
        assert server.problem_with("echo", {}) == "arguments: 'text' is a required property"
        assert server.problem_with("echo", {"text": 3}) == "arguments['text']: 3 is not of type 'string'"
        assert "'more' was unexpected" in str(server.problem_with("echo", {"text": "a", "more": 1}))
        assert server.problem_with("echo", "{") == "the arguments are no JSON object"
        assert server.problem_with("gone", {}) == "there is no tool gone"
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("ends", "ended with code 4 before it answered"),
        ("silent", "did not answer within 0.1 s"),
        ("junk", "ended with code 5 before it answered; what it writes is no message: hello there"),
        ("endless", "wrote a line of more than 8 MiB before it answered"),
    ],
)
async def test_a_server_that_does_not_start_is_one_line(mode, why):
    # A server that is slow to start is not what is tested where another end is expected.
    server, state = await server_of(raw(mode, timeout=0.1 if mode == "silent" else 60.0))
    assert (state.state, state.why) == (State.FAILED, why)
    assert (await server.start()) is state


async def test_a_program_that_is_missing_is_named(tmp_path):
    _, state = await server_of(ToolServer("no-such-program"))
    assert (state.state, state.why) == (
        State.FAILED,
        "cannot be started: there is no program no-such-program",
    )
    (tmp_path / "text").write_text("x")
    _, state = await server_of(ToolServer(str(tmp_path / "text")))
    assert state.why == f"cannot be started: {tmp_path / 'text'}: Permission denied"


@pytest.mark.parametrize(
    ("tool", "why"),
    [("dies", "ended with code 3"), ("floods", "wrote more than 4 MiB of messages that nobody asked for")],
)
async def test_a_server_that_ends_in_a_call_says_so_and_starts_again(tool, why, caplog):
    caplog.set_level("INFO")
    server, _ = await server_of(raw())
    try:
        result = await server.call(tool, {})
        assert result.failed and result.text == f"raw {why}."
        assert (server.seen.state, server.seen.why) == (State.ENDED, why)
        assert (await server.call("echo", {"text": "x"})).text == f"raw {why}."
        assert (await server.start()).state is State.READY
        assert (await server.call("echo", {"text": "x"})).text == "x"
    finally:
        await server.stop()
    assert ("last words" in caplog.text) == (tool == "dies")


async def test_noise_goes_to_the_log_and_not_to_the_screen(caplog, capfd):
    caplog.set_level("INFO")
    server, state = await server_of(raw("talks"))
    await server.stop()
    assert state.state is State.READY
    assert "raw wrote what is no message: welcome to this server" in caplog.text
    assert "raw: \\x1b[2Jnoise" in caplog.text
    assert capfd.readouterr() == ("", "")


async def test_a_server_that_stays_is_ended_and_so_is_what_it_has_started(tmp_path):
    noted = tmp_path / "pid"
    server, state = await server_of(raw("child", noted))
    assert state.state is State.READY
    await server.stop()
    pid = int(noted.read_text())
    for _ in range(1000):
        if not _lives(pid):
            break
        await asyncio.sleep(0.01)
    assert not _lives(pid)
    server, _ = await server_of(raw("stays"))
    await server.stop()
    assert server.seen.state is State.OFF


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


async def test_servers_run_on_a_thread_of_their_own():
    settings = {
        "one": raw(),
        "two": raw(),
        "sums": ToolServer(sys.executable, (str(HERE / "mcp_server.py"),)),
    }
    servers = ToolServers(lambda: settings)
    try:
        ready = await servers.ready(["one", "two", "sums", "three"])
        assert ready.problems == ("Tools: the settings name no server three.",)
        assert {"one-echo", "two-echo", "add"} <= set(ready.tools.tools)
        add = ready.tools.tools["add"]
        assert add.description == "Add two numbers." and set(add.schema["required"]) == {"a", "b"}
        assert (await servers.call(add, {"a": 2, "b": 3})).text == "5"
        assert "is not of type" in str(await servers.problem_with(add, {"a": "x", "b": 1}))
        assert [state.state for state in servers.states()] == [State.READY] * 3
        hangs = asyncio.create_task(servers.call(ready.tools.tools["one-hangs"], {}))
        await asyncio.sleep(0)
        hangs.cancel()
        assert (await servers.call(ready.tools.tools["two-echo"], {"text": "x"})).text == "x"
        await servers.stop("one")
        assert servers.state("one").state is State.OFF
    finally:
        servers.close(10)
    assert servers._thread is not None and not servers._thread.is_alive()


async def test_without_the_package_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "app.tools.server", None)
    servers = ToolServers(lambda: {"one": raw()})
    try:
        ready = await servers.ready(["one"])
    finally:
        servers.close(10)
    assert not ready.tools
    assert ready.problems == ("Tools: one needs the package mcp: pip install 'tui-chat[tools]'.",)
