"""Keys of a shell's command line in the composer."""

import pytest
from textual._xterm_parser import XTermParser

from app.settings.file import Settings
from tests.app.driving import ready, wait_until


@pytest.mark.parametrize(
    ("text", "keys", "after"),
    [
        ("see src/main.py", ["ctrl+w"], "see "),
        ("see src/main.py", ["alt+backspace"], "see src/main."),
        ("see src/main.py  ", ["ctrl+w", "ctrl+w", "ctrl+y"], "see src/main.py  "),
        ("one two", ["ctrl+a", "alt+d"], " two"),
        ("one two", ["ctrl+a", "alt+f", "ctrl+k"], "one"),
        ("one two", ["alt+b", "ctrl+u"], "two"),
        ("one two", ["alt+b", "ctrl+u", "ctrl+e", "ctrl+y"], "twoone "),
        ("one two", ["ctrl+a", "alt+d", "alt+d", "ctrl+y"], "one two"),
        ("a\nb", ["ctrl+u", "ctrl+u"], "a"),
        ("a\nb", ["ctrl+a", "up", "ctrl+k", "ctrl+k"], "b"),
        ("one two", ["ctrl+w", "ctrl+underscore"], "one two"),
        ("one two", ["ctrl+w", "ctrl+z", "alt+z"], "one "),
        ("", ["ctrl+w", "alt+d", "ctrl+u", "ctrl+k", "ctrl+y", "alt+b", "alt+f"], ""),
    ],
)
async def test_keys_for_words_and_lines(make_app, text, keys, after):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert(text)
        await pilot.press(*keys)
        assert screen.composer.text == after and len(screen.tabs.sessions) == 1


@pytest.mark.parametrize(
    ("sequence", "after", "column"),
    [("\x1b\x7f", "a b.", 4), ("\x17", "a ", 2), ("\x1bb", "a b.c", 4), ("\x1f", "", 0)],
)
async def test_they_arrive_as_terminals_send_them(make_app, sequence, after, column):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("a b.c")
        parser = XTermParser()
        for event in [*parser.feed(sequence), *parser.feed("")]:
            app.post_message(event)
        await wait_until(pilot, lambda: screen.composer.cursor_location == (0, column))
        assert screen.composer.text == after


async def test_the_settings_give_a_key_back_to_an_action(make_app):
    app = make_app(Settings(keys={"close_tab": "ctrl+w"}))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        await pilot.press("ctrl+w")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
