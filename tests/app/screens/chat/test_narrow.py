"""At 80 columns nothing is cut off, and the words are those of this reader's settings and keys."""

import threading
from types import MappingProxyType

import pytest
from rich.cells import cell_len
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.screens.dialogs.help import HelpScreen
from app.settings.file import GeneralSettings, Settings
from app.widgets.notice_bar import NoticeBar
from engine import FinishReason
from tests.app.driving import footer_of, plain, ready, wait_until
from tests.app.screens.dialogs.test_models import LARGE


async def test_help_wraps_and_names_the_readers_own_keys(make_app):
    keys = MappingProxyType({"new_tab": "ctrl+n"})
    app = make_app(Settings(general=GeneralSettings(enter_sends=False), keys=keys))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        welcome = str(screen.query_one("#welcome", Static).content)
        assert "\nCtrl+J  sends" in welcome and "\nCtrl+N  opens another chat" in welcome
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        scroll = app.screen.query_one(VerticalScroll)
        await wait_until(pilot, lambda: "Ctrl+N" in _text(scroll))
        assert "Ctrl+J      Send" in _text(scroll) and "ctx" in _text(scroll)
        assert max(map(cell_len, _text(scroll).splitlines())) <= scroll.scrollable_content_region.width
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, HelpScreen)


async def test_messages_name_the_readers_own_keys(make_app, engine):
    keys = MappingProxyType({"regenerate": "ctrl+g", "stop": "f12"})
    app = make_app(Settings(general=GeneralSettings(enter_sends=False), keys=keys))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.active.send("one")
        await wait_until(pilot, lambda: engine.generations and screen.active.sequence_id)
        engine.generations[0].finish(FinishReason.ERROR, "The logits hold NaN.")
        await wait_until(pilot, lambda: not screen.active.busy)
        assert "Press Ctrl+G to try again" in footer_of(screen.active, screen.active.conversation.leaf)
        await pilot.press("f4")
        assert "Ctrl+J asks again, F12 leaves it." in plain(screen.query_one(NoticeBar))


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            "the logits hold NaN; the file may be damaged",
            "damaged. Download it again, or press Ctrl+O to choose",
        ),
        ("the device has failed; restart the program", "restart the program."),
    ],
)
async def test_trying_again_is_offered_where_it_may_help(make_app, engine, cause, told):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.active.send("one")
        await wait_until(pilot, lambda: engine.generations and screen.active.sequence_id)
        engine.generations[0].finish(FinishReason.ERROR, cause)
        await wait_until(pilot, lambda: not screen.active.busy)
        footer = footer_of(screen.active, screen.active.conversation.leaf)
        assert told in footer and "try again" not in footer


def _text(scroll: VerticalScroll) -> str:
    contents = [table.content for table in scroll.query(Static)]
    return "\n".join(content.plain for content in contents if isinstance(content, Content))


async def test_what_is_opened_and_what_stays_fit_in_one_line(make_app, engine):
    gate = engine.load_gates[LARGE.path.name] = threading.Event()
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.active.open_model(LARGE.path)
        bar = screen.query_one(NoticeBar)
        await wait_until(pilot, lambda: "50%" in plain(bar))
        assert plain(bar).startswith(f"Opening {LARGE.path.stem} ")
        assert plain(bar).endswith("Esc keeps Pocket 46M")
        assert cell_len(plain(bar)) <= bar.content_size.width
        gate.set()
        await ready(pilot)


async def test_help_says_what_keys_do_below_them_where_there_is_no_room_beside(make_app):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        await ready(pilot)
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        scroll = app.screen.query_one(VerticalScroll)
        await wait_until(pilot, lambda: "Send\n    While the chat is answering the message" in _text(scroll))
        assert max(map(cell_len, _text(scroll).splitlines())) <= scroll.scrollable_content_region.width


async def test_an_empty_chat_stands_where_messages_will_in_a_wide_window(make_app, engine):
    app = make_app(Settings(general=GeneralSettings(panel="off")))
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await ready(pilot)
        welcome = screen.query_one("#welcome", Static)
        await wait_until(pilot, lambda: welcome.region.x == (screen.deck.size.width - 100) // 2)
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: welcome.region.x == 0)
