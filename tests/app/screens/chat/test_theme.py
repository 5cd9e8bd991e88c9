"""Choosing a theme is kept, and nothing else is."""

from dataclasses import replace

import pytest

from app.settings.file import EngineSettings, Settings, load_settings
from app.settings.paths import locations
from tests.app.driving import ready, wait_until


@pytest.mark.parametrize("before", [None, '[general]\nconfirm_close = false\n\n[keys]\nfork = "f10"\n'])
async def test_a_chosen_theme_is_all_that_is_written(make_app, engine, before):
    file = locations().settings_file
    app = make_app(Settings(engine=EngineSettings(vram_limit="12GiB")))
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        if before is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(before)
        expected, _ = load_settings(file)
        app.context.preferences.change("general", "theme", "moss")
        assert app.theme == "moss"
        await wait_until(pilot, lambda: load_settings(file)[0].general.theme == "moss")
        assert load_settings(file)[0] == replace(expected, general=replace(expected.general, theme="moss"))
        assert app.context.settings.engine.vram_limit == "12GiB"
