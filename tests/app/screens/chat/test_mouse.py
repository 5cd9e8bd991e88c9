"""What the mouse finds around a chat: names of keys are clicked, cut titles are said whole."""

from app.screens.dialogs.help import HelpScreen
from app.screens.dialogs.models.model_picker import ModelPicker
from app.settings.file import GeneralSettings, Settings
from app.widgets.status_line import StatusLine
from app.widgets.tab_bar import TabBar
from tests.app.driving import plain, ready, wait_until

TITLE = "What is a tern, [b]and[/b] how fast does it dive from such a height?"


async def test_the_name_of_a_key_is_clicked(make_app):
    app = make_app(Settings(general=GeneralSettings(panel="off")))
    async with app.run_test(size=(100, 24)) as pilot:
        screen = await ready(pilot)
        status = screen.query_one(StatusLine)
        for label, dialog in (("Help", HelpScreen), ("Choose model", ModelPicker)):
            column = plain(status).index(label)
            await pilot.hover(StatusLine, offset=(column, 0))
            await wait_until(pilot, lambda label=label: str(status.tooltip).endswith(f": {label}"))
            await pilot.click(StatusLine, offset=(column, 0))
            await wait_until(pilot, lambda dialog=dialog: isinstance(app.screen, dialog))
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.screen is screen)
        await pilot.hover(StatusLine, offset=(2, 0))
        await wait_until(pilot, lambda: status.tooltip is None)
        await pilot.click(StatusLine, offset=(2, 0))
        assert app.screen is screen


async def test_the_title_of_a_tab_is_said_whole(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.active.rename(TITLE)
        bar = screen.query_one(TabBar)
        await wait_until(pilot, lambda: "What is" in plain(bar) and TITLE not in plain(bar))
        for part, tip in (("What", f"{TITLE} · idle"), ("×", "Close chat"), ("+", "New chat")):
            await pilot.hover(TabBar, offset=(plain(bar).index(part), 0))
            await wait_until(pilot, lambda tip=tip: str(bar.tooltip) == tip)
