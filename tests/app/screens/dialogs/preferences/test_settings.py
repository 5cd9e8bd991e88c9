"""The dialog over all settings: found, explained, checked as typed, written one at a time."""

import tomllib
from dataclasses import fields

import pytest
from textual.widgets import Input, Static

from app.screens.dialogs.preferences.settings import SettingsScreen
from app.settings.actions import ACTIONS
from app.settings.file import Settings, load_settings
from app.settings.paths import locations
from app.settings.table import all_settings
from app.widgets.pick_list import PickList
from tests.app.driving import plain, ready, say, wait_until


async def opened(pilot):
    screen = await ready(pilot)
    screen.call_later(screen.run_action, "settings")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, SettingsScreen))
    dialog = pilot.app.screen
    await wait_until(pilot, lambda: dialog.query_one(PickList).option_count)
    return dialog


async def find(pilot, dialog, letters):
    dialog.query_one("#find", Input).value = letters
    await wait_until(pilot, lambda: dialog._setting and dialog._setting.name == letters)


def saved():
    return tomllib.loads(locations().settings_file.read_text())


def test_the_table_has_every_setting_and_every_action_and_reads_what_it_writes():
    table = all_settings(["ink"])
    named = {(setting.section, setting.name) for setting in table}
    for section in fields(Settings):
        if section.name not in ("keys", "endpoints", "tools"):
            options = fields(getattr(Settings(), section.name))
            assert {(section.name, option.name) for option in options if option.metadata} <= named
    assert {("keys", action.id) for action in ACTIONS} <= named
    for setting in table:
        assert setting.help and setting.parsed(setting.written(setting.default)) == setting.default
    prompt = next(setting for setting in table if setting.name == "system_prompt")
    assert prompt.parsed(prompt.written("a\nb\\n")) == "a\nb\\n"


async def test_a_choice_changes_with_enter_holds_at_once_and_is_all_that_is_written(make_app, engine):
    file = locations().settings_file
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n[general]\nconfirm_close = false # so\n")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        dialog = await opened(pilot)
        await find(pilot, dialog, "panel")
        await pilot.press("enter")
        await wait_until(pilot, lambda: 'panel = "on"' in file.read_text())
        assert file.read_text() == '# mine\n[general]\nconfirm_close = false # so\npanel = "on"\n'
        assert app.chat_screen.query_one("#panel").display
        await pilot.press("ctrl+d")
        await wait_until(pilot, lambda: "panel" not in file.read_text())
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        await wait_until(pilot, lambda: not app.chat_screen.query_one("#panel").display)


async def test_what_is_typed_is_checked_and_kept_only_when_it_is_right(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        dialog = await opened(pilot)
        await find(pilot, dialog, "top_p")
        assert "in new chats" in str(dialog.query_one("#about", Static).content)
        await pilot.press("enter")
        field = dialog.query_one("#value", Input)
        await wait_until(pilot, lambda: field.has_focus)
        assert field.value == "0.95"
        field.value = "7"
        problem = dialog.query_one("#problem", Static)
        await wait_until(pilot, lambda: "between 0.0 and 1.0" in str(problem.content))
        await pilot.press("enter")
        assert field.display and not locations().settings_file.exists()
        field.value = "0.5"
        await wait_until(pilot, lambda: not str(problem.content))
        await pilot.press("enter")
        await wait_until(
            pilot, lambda: locations().settings_file.exists() and saved()["sampling"] == {"top_p": 0.5}
        )
        assert app.context.new_conversation().sampling.top_p == 0.5
        assert "top_p" in app.context.settings.sampling.chosen
        assert not field.display and dialog.query_one("#find").has_focus


async def test_escape_leaves_a_value_as_it_was(make_app, engine):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        dialog = await opened(pilot)
        await find(pilot, dialog, "attach_limit")
        await pilot.press("enter")
        dialog.query_one("#value", Input).value = "2 MiB"
        await pilot.press("escape")
        await wait_until(pilot, lambda: dialog.query_one("#find").has_focus)
        assert app.screen is dialog and app.context.settings == app.settings
        assert app.settings.general.attach_limit == "1 MiB"


async def test_a_changed_key_works_and_is_named_at_once(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot)
        await find(pilot, dialog, "new_tab")
        await pilot.press("enter")
        field = dialog.query_one("#value", Input)
        field.value = "n"
        await wait_until(
            pilot, lambda: "needed to write" in str(dialog.query_one("#problem", Static).content)
        )
        field.value = "ctrl+n"
        await pilot.press("enter", "escape")
        screen = app.chat_screen
        await wait_until(pilot, lambda: app.screen is screen)
        await wait_until(pilot, lambda: "Ctrl+N New chat" in plain(screen.query_one("#status")))
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        assert load_settings(locations().settings_file)[0].keys == {"new_tab": "ctrl+n"}


async def test_enter_can_begin_a_line_without_a_restart(make_app, engine):
    app = make_app()
    async with app.run_test(size=(160, 40)) as pilot:
        screen = await ready(pilot)
        app.context.preferences.change("general", "enter_sends", False)
        app.context.preferences.change("general", "other_enter", ("alt+enter",))
        await pilot.press("a", "enter", "b")
        await wait_until(pilot, lambda: screen.composer.text == "a\nb")
        await wait_until(pilot, lambda: "Enter New line" in plain(screen.query_one("#status")))
        await pilot.press("alt+enter")
        await wait_until(pilot, lambda: len(engine.generations) == 1)


async def test_the_width_of_text_and_what_repeats_change_without_a_restart(make_app, engine):
    app = make_app()
    async with app.run_test(size=(180, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "a question")
        await wait_until(
            pilot, lambda: screen.deck.transcript and screen.deck.transcript._column.width == 100
        )
        app.context.preferences.change("general", "text_width", 60)
        await wait_until(pilot, lambda: screen.deck.transcript._column.width == 60)
        app.context.preferences.change("general", "stop_repeats", False)
        await wait_until(pilot, lambda: not screen.context.services.stop_repeats)


@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
async def test_every_setting_can_be_reached(make_app, engine, size):
    app = make_app()
    async with app.run_test(size=size) as pilot:
        dialog = await opened(pilot)
        listed = dialog.query_one(PickList)
        assert listed.option_count == len(dialog._all)
        for _ in range(len(dialog._all)):
            await pilot.press("pagedown")
            if listed.highlighted == len(dialog._all) - 1:
                break
        assert dialog._setting is dialog._found[-1]
        assert listed.scrollable_content_region.height >= 3
