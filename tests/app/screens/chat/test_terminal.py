"""What the terminal is told, and what is spared it: title, notices, signs, colours, motion."""

from rich.color import ColorType
from textual.events import AppBlur, AppFocus

from app.settings.file import GeneralSettings, Settings, TerminalSettings
from app.terminal import osc
from app.widgets.tab_bar import SPINNER
from tests.app.driving import bar_text, ready, say, wait_until
from tests.app.screens.chat.test_answers import ask

ANSWER = "A **table** with `code`:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```diff\n- old\n+ new\n```\n"


def told(app):
    said = []
    app.context.tell = app.chat_screen._telling._write = said.append
    return said


def painted(app):
    """Every segment that is on the screen."""
    return [segment for strip in app.screen._compositor.render_strips() for segment in strip]


async def test_an_answer_is_told_of_only_while_the_terminal_is_not_looked_at(make_app, engine, monkeypatch):
    monkeypatch.delenv("TMUX", raising=False)
    app = make_app(Settings(terminal=TerminalSettings(notify="osc777", title=False)))
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        said = told(app)
        await ask(pilot, engine, "first", "yes")
        assert said == []
        app.post_message(AppBlur())
        await wait_until(pilot, lambda: not app.app_focus)
        app.post_message(AppFocus())
        await wait_until(pilot, lambda: app.app_focus)
        await ask(pilot, engine, "second", "yes")
        assert said == []
        await say(pilot, "third")
        await wait_until(pilot, lambda: len(engine.generations) == 3)
        app.post_message(AppBlur())
        await wait_until(pilot, lambda: not app.app_focus)
        engine.generations[2].feed("done")
        engine.generations[2].finish()
        await wait_until(pilot, lambda: said)
        assert said == ["\x1b]777;notify;tui-chat;first has answered\x1b\\"]


def test_notices_steer_nothing_and_pass_tmux():
    title, text = "a;b\x1b]0;x\x07", "line\nnext\x9b"
    for how in ("osc9", "osc99", "osc777"):
        said = osc.notification(how, title, text, {})
        for part in said.removesuffix("\x1b\\").split("\x1b\\"):
            assert part.startswith("\x1b]") and part.count("\x1b") == 1
            assert not any(char in part for char in "\x07\x9b\n")
        assert osc.notification(how, title, text, {"TMUX": "1"}).startswith("\x1bPtmux;\x1b\x1b]")
    assert osc.notification("off", title, text, {}) == ""


def test_auto_goes_by_the_terminal():
    ways = {
        "osc99": {"TERM": "xterm-kitty"},
        "osc9": {"TERM_PROGRAM": "WezTerm"},
        "osc777": {"VTE_VERSION": "7600"},
    }
    for how, environ in ways.items():
        assert osc.notification("auto", "a", "b", environ) == osc.notification(how, "a", "b", environ)
    assert osc.notification("auto", "a", "b", {"TERM": "xterm"}) == osc.BELL
    assert osc.notification("auto", "a", "b", {"TERM": "xterm-kitty", "TMUX": "1"}) == osc.BELL


async def test_the_title_says_what_goes_on_and_is_given_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen._telling.end()
        said = told(app)
        await say(pilot, "Foxes")
        await wait_until(pilot, lambda: len(engine.generations) == 1 and screen.active.sequence_id)
        screen.beat.draw()
        assert said[0] == osc.KEEP_TITLE
        assert said[-1] == "\x1b]2;Foxes (1 answering) - tui-chat\x1b\\"
        engine.generations[0].finish()
        await wait_until(pilot, lambda: said[-1] == "\x1b]2;Foxes - tui-chat\x1b\\")
        app.context.preferences.change("terminal", "title", False)
        await wait_until(pilot, lambda: said[-1] == osc.BRING_TITLE_BACK)
        app.context.preferences.change("terminal", "title", True)
        await wait_until(pilot, lambda: said[-1].startswith("\x1b]2;"))
    assert said[-1] == osc.BRING_TITLE_BACK


async def test_only_ascii_is_drawn_where_the_settings_or_the_locale_say_so(make_app, engine, monkeypatch):
    app = make_app(Settings(terminal=TerminalSettings(glyphs="ascii")))
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "ask", ANSWER)
        text = "".join(segment.text for segment in painted(app))
        assert text.isascii() and "-----+-----" not in text and "-+-" in text
        app.context.preferences.change("terminal", "glyphs", "unicode")
        await wait_until(pilot, lambda: "─┼─" in "".join(segment.text for segment in painted(app)))
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "ask", "é 你")
        text = "".join(segment.text for segment in painted(app))
        assert text.isascii() and "? ??" in text


async def test_the_ansi_theme_keeps_to_the_terminals_own_colours(make_app, engine):
    app = make_app(Settings(general=GeneralSettings(theme="ansi")))
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "ask", ANSWER)
        for key in (None, "f1", "escape", "alt+l"):
            if key is not None:
                await pilot.press(key)
                await pilot.pause()
            styles = [segment.style for segment in painted(app) if segment.style is not None]
            colors = {
                color for style in styles for color in (style.color, style.bgcolor) if color is not None
            }
            assert colors
            assert {color.type for color in colors} <= {ColorType.DEFAULT, ColorType.STANDARD}


async def test_without_colours_states_and_marks_can_still_be_told_apart(make_app, engine, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "ask", ANSWER)
        triplets = {
            color.triplet
            for segment in painted(app)
            if segment.style is not None
            for color in (segment.style.color, segment.style.bgcolor)
            if color is not None and color.triplet is not None
        }
        assert all(red == green == blue for red, green, blue in triplets)


async def test_nothing_moves_where_motion_is_reduced(make_app, engine, short_beats):
    app = make_app(Settings(terminal=TerminalSettings(motion="reduced")))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        assert app.animation_level == "none" and not screen.composer.cursor_blink
        await say(pilot, "ask")
        await wait_until(pilot, lambda: len(engine.generations) == 1 and screen.active.sequence_id)
        engine.generations[0].feed("some text")
        await wait_until(pilot, lambda: SPINNER[0] in bar_text(app))
        beats = screen.beat._beats
        await wait_until(pilot, lambda: screen.beat._beats > beats + 2)
        assert SPINNER[0] in bar_text(app)
        app.context.preferences.change("terminal", "motion", "full")
        await wait_until(pilot, lambda: SPINNER[0] not in bar_text(app))
        assert screen.composer.cursor_blink


async def test_the_cursor_stands_still_until_somebody_writes(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        composer = (await ready(pilot)).composer
        assert composer.cursor_blink
        composer.rest()
        assert not composer.cursor_blink
        await pilot.press("a")
        await wait_until(pilot, lambda: composer.cursor_blink)
        composer.cursor_blink = False
        composer.rest()
        await pilot.press("b")
        await wait_until(pilot, lambda: composer.text == "ab")
        assert not composer.cursor_blink
