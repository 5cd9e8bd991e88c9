"""Tools as they look: the dialog that asks, the list of servers, and calls in the transcript."""

import pytest
from textual.content import Content

from app.screens.dialogs.tools.servers import ToolServersScreen
from app.settings.file import GeneralSettings, Settings
from app.tools.results import ToolResult
from app.tools.state import ServerState, State
from tests.app.driving import say, wait_until
from tests.app.screens.chat.test_tools import asked, called, staged
from tests.app.tools.scripted import call_text

LOOKS = [("ink", (60, 15)), ("ink", (100, 30)), ("frost", (80, 24))]


def made(make_app, theme):
    return make_app(Settings(general=GeneralSettings(theme=theme, panel="off")))


async def still(pilot, engine, **settings):
    """Nothing blinks, and no folder of this run is named."""
    screen, servers = await staged(pilot, engine, **settings)
    screen.composer.cursor_blink = False
    screen.deck.greet(Content(""))
    return screen, servers


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_the_dialog_that_asks(snap_compare, make_app, engine, theme, size):
    async def run(pilot):
        await still(pilot, engine)
        await called(pilot, engine)
        await asked(pilot)
        await pilot.press("down")

    assert snap_compare(made(make_app, theme), run_before=run, terminal_size=size)


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_the_list_of_servers(snap_compare, make_app, engine, theme, size):
    async def run(pilot):
        _, servers = await still(pilot, engine)
        servers.states = lambda: [
            servers.state("files"),
            ServerState("web", State.FAILED, why="cannot be started: there is no program npx"),
            ServerState("sums", State.OFF),
        ]
        await say(pilot, "/tools")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, ToolServersScreen))

    assert snap_compare(made(make_app, theme), run_before=run, terminal_size=size)


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_calls_in_the_transcript(snap_compare, make_app, engine, theme, size):
    async def run(pilot):
        screen, servers = await still(pilot, engine, allow=("read",))
        servers.result = ToolResult("the disk is full", failed=True)
        await called(pilot, engine)
        await wait_until(pilot, lambda: len(engine.generations) == 2 and screen.active.sequence_id)
        servers.result = ToolResult("one\ntwo")
        engine.generations[-1].feed(call_text(path='"b.txt"') + call_text("list"))
        engine.generations[-1].finish()
        await asked(pilot)
        await pilot.press("down", "down", "down", "enter")
        await wait_until(pilot, lambda: len(engine.generations) == 3 and screen.active.sequence_id)
        engine.generations[-1].feed("The file says **one** and two.")
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await wait_until(pilot, lambda: len(screen.active.conversation.path()) == 7)
        transcript = screen.deck.transcript
        await wait_until(pilot, lambda: transcript._column.items[-1].footer and not transcript._dirty)
        transcript.toggle_reasoning(screen.active.conversation.path()[4].id)
        transcript.jump_to_end()
        await pilot.pause()

    assert snap_compare(made(make_app, theme), run_before=run, terminal_size=size)
