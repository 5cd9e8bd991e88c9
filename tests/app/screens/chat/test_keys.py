"""Keys and pastes reach the composer or the transcript, wherever the focus is."""

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key, Paste

from app.settings.file import GeneralSettings, Settings
from tests.app.driving import ready, wait_until
from tests.app.screens.chat.test_answers import ask


async def long_chat(pilot, engine):
    """Let a long answer stand in the transcript."""
    screen = await ready(pilot)
    await ask(pilot, engine, "question", "line\n\n" * 80)
    await wait_until(pilot, lambda: screen.deck.transcript.max_scroll_y > 100)
    return screen


async def test_what_is_typed_while_the_transcript_has_the_focus_is_written(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await long_chat(pilot, engine)
        screen.composer.insert("a!")
        screen.composer.move_cursor((0, 1))
        await pilot.click(screen.deck.transcript)
        assert screen.focused is screen.deck.transcript
        await pilot.press("b", "space", "C")
        await wait_until(pilot, lambda: screen.composer.text == "ab C!")
        assert screen.focused is screen.composer


async def test_a_paste_while_the_transcript_has_the_focus_is_written(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await long_chat(pilot, engine)
        await pilot.press("tab")
        await wait_until(pilot, lambda: screen.focused is screen.deck.transcript)
        app.post_message(Paste("one\r\ntwo"))
        await wait_until(pilot, lambda: screen.composer.text == "one\ntwo")
        assert screen.focused is screen.composer
        app.post_message(Paste("!"))
        await wait_until(pilot, lambda: screen.composer.text == "one\ntwo!")


async def test_the_transcript_keeps_its_own_keys(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await long_chat(pilot, engine)
        transcript = screen.deck.transcript
        transcript.focus()
        await pilot.press("up", "shift+up")
        await wait_until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y - 2)
        await pilot.press("end")
        await wait_until(pilot, lambda: transcript.follow)
        assert screen.focused is transcript and screen.composer.text == ""


async def test_a_dialog_keeps_what_is_typed_in_it(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await long_chat(pilot, engine)
        await pilot.press("f1")
        await wait_until(pilot, lambda: app.screen is not screen)
        await pilot.press("x")
        app.post_message(Paste("pasted"))
        await pilot.pause()
        assert screen.composer.text == ""


async def test_page_keys_scroll_the_transcript_while_the_composer_has_the_focus(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await long_chat(pilot, engine)
        transcript = screen.deck.transcript
        screen.composer.insert("1\n2\n3")
        await pilot.pause()
        end = transcript.scroll_y
        await pilot.press("pageup")
        await wait_until(pilot, lambda: transcript.scroll_y < end - 5)
        assert screen.composer.cursor_location == (2, 1) and screen.focused is screen.composer
        await pilot.press("pagedown")
        await wait_until(pilot, lambda: transcript.follow)


@pytest.mark.parametrize("enter_sends", [True, False])
@pytest.mark.parametrize(
    "sequence", ["\x1b\r", "\x1b[27;2;13~", "\x1b[27;3;13~", "\x1b[27;5;13~", "\x1b[13;2u", "\x1b[13;3u"]
)
async def test_enter_with_another_key_does_what_enter_does_not_as_terminals_send_it(
    make_app, engine, sequence, enter_sends
):
    app = make_app(Settings(general=GeneralSettings(enter_sends=enter_sends)))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        parser = XTermParser()
        for event in [*parser.feed(f"a{sequence}b"), *parser.feed("")]:
            assert isinstance(event, Key)
            app.post_message(event)
        if enter_sends:
            await wait_until(pilot, lambda: screen.composer.text == "a\nb")
            assert not engine.generations
        else:
            await wait_until(pilot, lambda: len(engine.generations) == 1)
            assert screen.active.conversation.last_user().text == "a"
