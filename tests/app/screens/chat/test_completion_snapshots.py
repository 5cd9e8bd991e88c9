"""What the list over the composer looks like; after an intended change run it with `--snapshot-update`."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.settings.file import GeneralSettings, Settings
from tests.app.driving import ready, wait_until
from tests.app.screens.chat.test_slash import begin, keep_prompt, offered


@pytest.mark.parametrize(("theme", "size"), [("ink", (80, 24)), ("linen", (110, 30))])
def test_commands_and_prompts(snap_compare, make_app, home, theme, size):
    keep_prompt(home, "translate", "# Into another language\nInto {{language}}:\n{{text}}")
    app = make_app(Settings(general=GeneralSettings(theme=theme)))

    async def run(pilot):
        screen = await ready(pilot)
        screen.composer.cursor_blink = False
        app.context.locations = replace(app.context.locations, models=Path("/models"))
        await screen.show_active()
        await begin(pilot, "/t")
        await wait_until(pilot, lambda: "/translate" in offered(screen))
        await pilot.press("down")
        await wait_until(pilot, lambda: screen.composer.completions._at == 1)

    assert snap_compare(app, run_before=run, terminal_size=size)
