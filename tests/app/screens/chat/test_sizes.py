"""A terminal may have any size, and be made larger again."""

import pytest
from textual.command import CommandPalette

from app.screens.dialogs.chats import ChatsScreen
from app.screens.dialogs.models.model_picker import ModelPicker
from app.widgets.pick_list import PickList
from tests.app.driving import plain, ready, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask

RICH = "| a | b |\n|--|--|\n|x|y|\n\n```py\nx = 1\n```\n> - a\n\nüüü 中中中"


@pytest.mark.parametrize("size", [(1, 1), (4, 10), (80, 2)])
@pytest.mark.parametrize("key", ["", "f9"])
async def test_any_size_is_lived_through(make_app, engine, size, key):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "question\n- a", RICH)
        app.notify("word " * 30)
        if key:
            await pilot.press(key)
            await wait_until(pilot, lambda: app.screen is not screen)
        await pilot.resize_terminal(*size)
        await pilot.press("a")
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: screen.size == (80, 24))
        if key:
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.screen is screen)
        await pilot.press("b")
        await wait_until(pilot, lambda: screen.composer.text.endswith("b"))
        assert shown_answer(screen.deck.transcript) == RICH
        assert plain(screen.query_one("#status")).startswith(" Pocket 46M")
    assert app.crash is None


async def test_the_app_starts_in_a_terminal_of_one_cell(make_app, engine):
    app = make_app()
    async with app.run_test(size=(1, 1)) as pilot:
        screen = await ready(pilot)
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: plain(screen.query_one("#status")).startswith(" Pocket 46M"))


@pytest.mark.parametrize(("key", "dialog"), [("ctrl+p", CommandPalette)])
async def test_page_keys_in_a_palette_without_room_do_nothing(make_app, engine, key, dialog):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(key)
        await wait_until(pilot, lambda: isinstance(app.screen, dialog))
        commands = app.screen.query_one("CommandList")
        await wait_until(pilot, lambda: commands.highlighted is not None)
        await pilot.press("pagedown")
        await wait_until(pilot, lambda: commands.highlighted)
        commands.styles.height = 0
        await wait_until(pilot, lambda: not commands.scrollable_content_region)
        commands.clear_options().add_options(["one", "two"])
        commands.highlighted = 1
        await pilot.press("pageup", "pagedown")
        assert commands.highlighted == 1 and app.crash is None


@pytest.mark.parametrize(("key", "dialog"), [("ctrl+l", ChatsScreen), ("ctrl+o", ModelPicker)])
async def test_page_keys_in_a_list_without_room_do_nothing(make_app, engine, key, dialog):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "question", "answer")
        await pilot.press(key)
        await wait_until(pilot, lambda: isinstance(app.screen, dialog))
        options = app.screen.query_one(PickList)
        await wait_until(pilot, lambda: options.highlighted is not None)
        options.styles.height = options.styles.min_height = 0
        await wait_until(pilot, lambda: not options.scrollable_content_region)
        options.clear_options().add_options(["one", "two"])
        options.highlighted = 1
        await pilot.press("pageup", "pagedown")
        assert options.highlighted == 1 and app.crash is None
