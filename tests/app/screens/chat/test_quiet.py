"""What the app says of itself: once, in place, and never over what is being written."""

import pytest
from textual.widgets import Static

from app.screens.dialogs.help import HelpScreen
from app.terminal.clipboard import CopyResult
from app.widgets.notice_bar import NoticeBar
from app.widgets.status_line import StatusItem, StatusLine
from tests.app.driving import plain, ready, say, wait_until
from tests.app.screens.chat.test_answers import ask

WARNINGS = [
    "general.theme: there is no theme 'x' among ember, frost, ink, linen and moss; ink is used [b]",
    "keys.foo: there is no such action",
    "sampling.top_p: 7 is not between 0 and 1\x1b[2J",
]


async def test_what_was_wrong_at_the_start_is_one_line_and_all_of_it_in_the_help(make_app, engine):
    app = make_app(warnings=WARNINGS)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        bar = screen.query_one(NoticeBar)
        await wait_until(pilot, lambda: plain(bar).endswith("… and 2 more; F1 lists them"))
        assert plain(bar).startswith("general.theme") and "\n" not in plain(bar)
        assert not app._notifications
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        listed = str(app.screen.query_one("#warnings", Static).content)
        assert WARNINGS[0] in listed and WARNINGS[1] in listed and "0 and 1␛[2J" in listed
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen)
        await pilot.press("escape")
        await wait_until(pilot, lambda: plain(bar) == "")


async def test_one_warning_that_fits_needs_no_help_and_goes_with_the_first_message(make_app, engine):
    app = make_app(warnings=WARNINGS[1:2])
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: plain(screen.query_one(NoticeBar)) == WARNINGS[1])
        await say(pilot, "hello")
        await wait_until(pilot, lambda: plain(screen.query_one(NoticeBar)) == "")


async def test_a_model_that_cannot_be_opened_is_said_once_and_whole(make_app, engine):
    reason = "pocket.gguf: " + "the tensor lies outside of the file, " * 3 + "download it again"
    engine.failures["pocket-46m-q5_k_s.gguf"] = reason
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: app.chat_screen and app.chat_screen.tabs.sessions)
        await wait_until(pilot, lambda: app.chat_screen.active.models.error)
        bar = app.chat_screen.query_one(NoticeBar)
        await wait_until(pilot, lambda: " ".join(plain(bar).split()) == reason)
        assert not app._notifications


async def test_toasts_stand_over_the_chat(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        screen = await ready(pilot)
        screen.say("word " * 40)
        await wait_until(pilot, lambda: screen.query("Toast") and screen.query("Toast").first().region)
        toast = screen.query("Toast").first()
        assert toast.region.bottom <= screen.composer.region.y


@pytest.mark.parametrize("model", ["Pocket 46M", "a-model-with-a-long-name-" * 4])
async def test_a_narrow_status_line_keeps_what_stops_an_answer(make_app, engine, model):
    item = StatusItem(model, "Q5_K_M", (12_345, 131_072), 123.4, 0.5, "2 in line, about 4 s")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        line = (await ready(pilot)).query_one(StatusLine)
        line.show(item, [("F1", "Help"), ("F5", "Pause"), ("Esc", "Stop")])
        text = plain(line)
    assert text.endswith("Esc Stop  ") and "123.4 tok/s" in text and len(text) == 80


@pytest.fixture
def copied():
    return []


@pytest.fixture
def copying(copied):
    def copy(text, write):
        copied.append(text)
        return CopyResult(True, f"Copied {len(text)} characters.")

    return copy


def messages(app):
    return [notification.message for notification in app._notifications]


async def test_what_the_mouse_selects_is_shown_copied_and_said(make_app, engine, copying, copied):
    app = make_app(copy=copying)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "question", "one two three")
        transcript = screen.deck.transcript
        await pilot.mouse_down(transcript, offset=(6, 4))
        await pilot.hover(transcript, offset=(8, 4))
        before = {segment.text: segment.style.bgcolor for segment in transcript.render_line(3)}
        shown = {segment.text: segment.style for segment in transcript.render_line(4)}
        assert shown["two"].bgcolor not in before.values()
        assert shown["two"].color == shown["one "].color != shown["two"].bgcolor
        await pilot.mouse_up(transcript, offset=(8, 4))
        await wait_until(pilot, lambda: copied == ["two"])
        await wait_until(pilot, lambda: messages(app) == ["Copied 3 characters."])
        await pilot.mouse_up(screen.query_one("#status"))
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: copied == ["two", "two"])


async def test_ctrl_c_copies_what_is_selected_in_the_composer_else_says_what_leaves(
    make_app, engine, copying, copied
):
    app = make_app(copy=copying)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("a word")
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: messages(app) == ["Nothing is selected to copy. Ctrl+Q leaves."])
        await pilot.press("shift+left", "shift+left", "ctrl+c")
        await wait_until(pilot, lambda: copied == ["rd"])
        await pilot.press("right", "enter")
        await wait_until(pilot, lambda: screen.active.busy)
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: messages(app)[-1].endswith("Ctrl+Q leaves, Esc stops the answer."))
        assert screen.active.busy
