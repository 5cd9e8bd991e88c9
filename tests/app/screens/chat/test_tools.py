"""Tools on the screen: calls are asked about with what they are to do, and fold in the transcript."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from textual.widgets import OptionList, Static

from app.chat.conversation import Status
from app.chat.events import TabState
from app.screens.dialogs.tools.ask_call import AskCallScreen
from app.screens.dialogs.tools.servers import ToolServersScreen
from app.settings.file import Settings
from app.settings.servers.tool_servers import ToolServer
from app.tools.results import ToolResult
from app.tools.state import State
from tests.app.driving import bar_text, chat, ready, say, wait_until
from tests.app.tools.scripted import HERMES, ScriptedServers, call_text


async def staged(pilot, engine, **settings):
    """The chat in front may call tools of a server that is played."""
    screen = await ready(pilot)
    servers = ScriptedServers(**settings)
    object.__setattr__(screen.context.services, "tools", servers)
    for session in screen.tabs.sessions:
        give_tools(session, servers)
    return screen, servers


def give_tools(session, servers):
    session.tools._servers = servers
    session.conversation.tools = ("files",)
    session.model.local.template.tool_format = HERMES


async def called(pilot, engine, text=None):
    await say(pilot, "what is in a.txt")
    await wait_until(pilot, lambda: engine.generations and chat(pilot.app).active.sequence_id is not None)
    engine.generations[-1].feed(text or "I look. " + call_text())
    engine.generations[-1].finish()


def lines_of(screen):
    """The rows of the transcript, as text."""
    return [row.text for item in screen.deck.transcript._column.items for row in item.rows]


def head_of(screen):
    return next(line for line in lines_of(screen) if "read" in line and line[0] in "▸▾")


async def asked(pilot):
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, AskCallScreen))
    await wait_until(pilot, lambda: pilot.app.screen.query("#arguments Static"))
    return pilot.app.screen


async def test_a_call_is_shown_asked_about_and_its_result_folds(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen, servers = await staged(pilot, engine)
        servers.held = True
        await called(pilot, engine)
        dialog = await asked(pilot)
        texts = " ".join(str(widget.render()) for widget in dialog.query(Static))
        assert "The model asks for read of files" in texts and '"path": "a.txt"' in texts
        assert "Reads a file" in texts
        assert head_of(screen) == '▸ ? read · { "path": "a.txt" } · files · asking'
        # Whoever is just writing allows nothing.
        await pilot.press("y", "enter", "space")
        assert pilot.app.screen is dialog and servers.calls == []
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: servers.calls)
        await wait_until(pilot, lambda: "calling" in head_of(screen))
        servers.going.set()
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        await wait_until(pilot, lambda: screen.active.sequence_id is not None)
        engine.generations[-1].feed("It says hello.")
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await wait_until(pilot, lambda: any("It says hello." in line for line in lines_of(screen)))
        assert head_of(screen) == '▸ · read · { "path": "a.txt" } · files · 5 characters'
        # Question, answer, call and answer: one header for the whole turn.
        assert sum(line.startswith("m") or "pocket" in line.lower() for line in lines_of(screen)) <= 1
        assert not any(line == "│ hello" for line in lines_of(screen))
        await pilot.press("alt+o")
        await wait_until(pilot, lambda: any(line == "│ hello" for line in lines_of(screen)))


async def test_escape_in_the_dialog_stops_the_answer(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen, servers = await staged(pilot, engine)
        await called(pilot, engine)
        await asked(pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.active.busy)
        assert servers.calls == [] and screen.active.conversation.path()[-1].status is Status.STOPPED
        await wait_until(pilot, lambda: "stopped" in head_of(screen))


async def test_a_refusal_is_one_and_a_failure_says_why(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen, servers = await staged(pilot, engine)
        servers.result = ToolResult("no\x1b[2J such file", failed=True)
        await called(pilot, engine, call_text() + call_text(path='"b.txt"'))
        await asked(pilot)
        await pilot.press("down", "down", "down", "enter")
        await wait_until(pilot, lambda: screen.active.tools.asking and len(screen.active.tools._open) == 1)
        await asked(pilot)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        heads = [line for line in lines_of(screen) if line.startswith("▸")]
        assert heads == [
            '▸ ■ read · { "path": "a.txt" } · files · refused',
            '▸ ! read · { "path": "b.txt" } · files · failed: no␛[2J such file',
        ]


async def test_a_call_of_a_chat_that_is_not_in_view_waits_and_its_tab_asks(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen, servers = await staged(pilot, engine, allow=("*",))
        first = screen.active
        await say(pilot, "what is in a.txt")
        await wait_until(pilot, lambda: first.sequence_id is not None)
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: screen.active is not first)
        engine.generations[-1].feed(call_text())
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: first.state is TabState.ASKING)
        await wait_until(pilot, lambda: "? what is" in bar_text(app))
        assert servers.calls == [] and not isinstance(app.screen, AskCallScreen)
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        assert len(servers.calls) == 1


async def test_the_dialog_comes_when_the_chat_comes_into_view(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen, _ = await staged(pilot, engine)
        first = screen.active
        await say(pilot, "what is in a.txt")
        await wait_until(pilot, lambda: first.sequence_id is not None)
        await pilot.press("f12")
        await wait_until(pilot, lambda: screen.over is not None or app.screen is not screen)
        engine.generations[-1].feed(call_text())
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: first.state is TabState.ASKING)
        assert not isinstance(app.screen, AskCallScreen)
        await pilot.press("escape")
        await asked(pilot)


async def test_hostile_calls_steer_no_terminal_and_break_no_dialog(make_app, engine):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        screen, _ = await staged(pilot, engine)
        text = json.dumps("\x1b]0;owned\x07[b]x[/b]\n" + "long " * 5000)
        await called(pilot, engine, call_text(path=text))
        dialog = await asked(pilot)
        shown = "".join(str(widget.render()) for widget in dialog.query(Static))
        assert "\x1b" not in shown and "[b]x[/b]" in shown
        choices = dialog.query_one("#choices", OptionList)
        assert choices.region.height == 3 and choices.region.bottom <= 15
        assert "\x1b" not in head_of(screen) and len(head_of(screen)) < 60


async def test_tools_are_listed_and_switched(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen, _ = await staged(pilot, engine)
        await say(pilot, "/tools")
        await wait_until(pilot, lambda: isinstance(app.screen, ToolServersScreen))
        dialog = app.screen
        rows = dialog.query_one("#servers", OptionList)
        assert "files" in str(rows.get_option_at_index(0).prompt)
        assert "ready, 2 tools" in str(rows.get_option_at_index(0).prompt)
        assert "read  Reads a file" in str(dialog.query_one("#tools", Static).render())
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.conversation.tools == ())
        await wait_until(pilot, lambda: "off" in str(rows.get_option_at_index(0).prompt))
        await pilot.press("escape")
        await say(pilot, "/tools files")
        await wait_until(pilot, lambda: screen.active.conversation.tools == ("files",))
        await say(pilot, "/tools gone")
        await wait_until(pilot, lambda: any("no server 'gone'" in n.message for n in app._notifications))


RAW = str(Path(__file__).parents[2] / "tools" / "raw_server.py")


async def test_a_server_of_the_settings_is_started_called_and_ended_with_the_app(make_app, engine):
    server = ToolServer(sys.executable, ("-S", RAW), allow=("echo",))
    gone = ToolServer("no-such-program")
    app = make_app(replace(Settings(), tools={"raw": replace(server, on=True), "gone": gone}))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        servers = screen.context.services.tools
        # Nothing is started before it is needed.
        assert [state.state for state in servers.states()] == [State.OFF, State.OFF]
        assert screen.active.conversation.tools == ("raw",)
        screen.active.model.local.template.tool_format = HERMES
        await say(pilot, "/tools gone")
        said = "Tools: gone cannot be started: there is no program no-such-program."
        await wait_until(pilot, lambda: any(said in n.message for n in app._notifications))
        await say(pilot, "say it again")
        await wait_until(pilot, lambda: engine.generations and screen.active.sequence_id is not None)
        call = '{"name": "echo", "arguments": {"text": "again"}}'
        engine.generations[-1].feed(f"<tool_call>{call}</tool_call>")
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        assert screen.active.conversation.path()[2].text == "again"
        assert servers.state("raw").state is State.READY
        screen.active.stop()
    assert app.end_services()
    assert servers._thread is not None and not servers._thread.is_alive()
