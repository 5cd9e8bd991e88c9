"""What the dialogs over settings and actions look like; changed on purpose: run with `--snapshot-update`."""

import pytest
from textual.content import Content
from textual.widgets import Input

from app.settings.file import GeneralSettings, Settings
from tests.app.driving import ready, wait_until


def shown(*keys):
    async def run(pilot):
        screen = await ready(pilot)
        screen.composer.cursor_blink = False
        # It names a folder of this run.
        screen.deck.greet(Content(""))
        await pilot.press(keys[0])
        await wait_until(pilot, lambda: pilot.app.screen is not screen)
        for field in pilot.app.screen.query(Input):
            field.cursor_blink = False
        await pilot.press(*keys[1:])
        await pilot.pause()

    return run


@pytest.mark.parametrize(
    ("theme", "keys", "size"),
    [
        ("ink", ("alt+l", "down", "down"), (80, 24)),
        ("chalk", ("alt+l", *"top_p", "enter", "backspace", "x"), (60, 15)),
        ("ink", ("ctrl+x",), (80, 24)),
        ("beacon", ("ctrl+x", "c"), (60, 15)),
        ("frost", ("f7",), (80, 24)),
    ],
    ids=["settings", "value", "groups", "letters", "themes"],
)
def test_dialogs(snap_compare, make_app, theme, keys, size):
    app = make_app(Settings(general=GeneralSettings(theme=theme)))
    assert snap_compare(app, run_before=shown(*keys), terminal_size=size)
