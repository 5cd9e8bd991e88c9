"""Choosing a theme: shown as it is highlighted, kept with Enter, brought back with Esc; files read again."""

import os
import tomllib

from textual.widgets import Input

from app.screens.dialogs.preferences.themes import ThemesScreen
from app.settings.paths import locations
from app.widgets.pick_list import PickList
from tests.app.driving import ready, wait_until
from tests.app.settings.test_themes import GOOD


def keep_theme(text):
    folder = locations().themes
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mine.toml"
    path.write_text(text)
    return path


async def opened(pilot):
    screen = await ready(pilot)
    await pilot.press("f7")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ThemesScreen))
    dialog = pilot.app.screen
    await wait_until(pilot, lambda: dialog.query_one(PickList).option_count)
    return screen, dialog


async def test_themes_are_shown_as_they_are_highlighted_own_first(make_app, engine):
    keep_theme(GOOD)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen, dialog = await opened(pilot)
        names = [theme.name for theme in dialog._found]
        assert names[0] == "mine" and set(names[1:9]) >= {"ink", "ansi", "beacon", "chalk"}
        dialog.query_one(Input).value = "moss"
        await wait_until(pilot, lambda: app.theme == "moss")
        assert app.settings.general.theme == "ink" and not locations().settings_file.exists()
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen and app.theme == "ink")


async def test_enter_keeps_the_theme(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        _, dialog = await opened(pilot)
        dialog.query_one(Input).value = "frost"
        await wait_until(pilot, lambda: app.theme == "frost")
        await pilot.press("enter")
        file = locations().settings_file
        await wait_until(
            pilot, lambda: file.exists() and tomllib.loads(file.read_text())["general"] == {"theme": "frost"}
        )
        assert app.context.settings.general.theme == "frost"


async def test_a_saved_theme_file_is_read_again_and_a_broken_one_named(make_app, engine):
    path = keep_theme(GOOD)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        app.context.preferences.change("general", "theme", "mine")
        await wait_until(pilot, lambda: screen.styles.background.hex == "#123456")
        path.write_text(GOOD.replace('background = "#123456"', 'background = "#222222"'))
        os.utime(path, ns=(1, 1))
        await app._themes._look()
        await wait_until(pilot, lambda: screen.styles.background.hex == "#222222")
        path.write_text(GOOD.replace("accent", "acent"))
        await app._themes._look()
        await wait_until(pilot, lambda: any("colors.accent" in note.message for note in app._notifications))
        assert screen.styles.background.hex == "#222222"
