"""What files, their names and their contents say is never markup and steers no terminal."""

import ast
import re
from pathlib import Path

import pytest

from app.models.listed.listing import ModelFile
from app.screens.dialogs.chats import ChatsScreen
from app.screens.dialogs.models.model_picker import ModelPicker
from tests.app.driving import plain, ready, wait_until
from tests.app.screens.chat.test_answers import ask

ROOT = Path(__file__).parents[3]
NASTY = "e\x1b[2J\x9b1m\x07[red]x[/] [@click=app.quit]q[/] [/]\u202egg\nv"
STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
CONTENTS = {
    "_FOOT",
    "card",
    "cost_text",
    "difference",
    "words",
    "_row",
    "row",
    "_table",
    "_warning_lines",
    "welcome",
}
"""What a widget may be given besides the app's own words: all of it cleaned, none of it markup."""


def seen(app) -> str:
    """The text of the screen and of what is on top of it."""
    screen = app.screen
    return "\n".join(strip.text for strip in screen._compositor.render_strips())


def check(app) -> str:
    text = seen(app)
    assert [line for line in text.split("\n") if STEERING.search(line)] == []
    return text


async def test_a_model_with_a_hostile_name_is_shown_as_it_is_called(make_app, engine, tmp_path):
    path = tmp_path / f"{NASTY[:20]}{NASTY[20:]}.gguf".replace("/", "∕")
    path.touch()
    found = ModelFile(path, path.stem, 1, "Q4_0", 99)
    broken = ModelFile(path.with_suffix(".bin"), path.stem, problem=f"general.name {NASTY} is odd")
    app = make_app(find_models=lambda folders: [found, broken], warnings=[f"{path}: {NASTY}", "b"])
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        screen = await ready(pilot)
        check(app)
        await pilot.press("f1")
        await wait_until(pilot, lambda: app.screen is not screen)
        assert "[red]x" in check(app)
        await pilot.press("escape", "ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelPicker) and app.screen._shown)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert "[@click=app.quit]" in check(app)
        await pilot.press("up", "enter")
        await wait_until(pilot, lambda: screen.active.model.path == path)
        assert "[red]x" in plain(screen.query_one("#status"))
        assert "[red]x" in check(app)
        screen.active.model.local.template.warning = NASTY
        screen.active.models.warnings = [NASTY]
        await ask(pilot, engine, f"question {NASTY}", "answer")
        screen.beat.draw()
        await wait_until(pilot, lambda: "[@click" in check(app))
        engine.failures[path.name] = f"{path}: {NASTY}"
        app.context.engine._resident.clear()
        screen.active.open_model(path)
        await wait_until(pilot, lambda: screen.query("Toast"))
        await pilot.pause()
        assert "[red]x" in check(app)
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen) and app.screen._chats)
        await pilot.press("delete")
        await wait_until(pilot, lambda: any("brings it back" in n.message for n in app._notifications))
        check(app)


@pytest.mark.parametrize("key", ["f2", "f4", "f8"])
async def test_a_text_that_is_written_again_steers_nothing_and_is_kept(make_app, engine, key):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, NASTY, "answer")
        screen.active.conversation.system_prompt = NASTY
        await pilot.press(key)
        await wait_until(pilot, lambda: app.screen is not screen or screen.composer.text)
        assert "␛[2J" in check(app)
        assert key != "f4" or screen.composer.text == NASTY


@pytest.mark.parametrize("room", ["screens", "widgets", "window"])
def test_widgets_are_given_cleaned_contents_or_the_apps_own_words(room):
    for path in sorted((ROOT / "app" / room).rglob("*.py")):
        text = path.read_text()
        assert "from_markup" not in text and "markup=True" not in text, path
        if "Static" not in text and "Option" not in text and "Button" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and named(call.func) in ("Static", "Option", "Button", "update"):
                for given in call.args[:1]:
                    own = isinstance(given, ast.Constant) or named(given) in CONTENTS
                    assert own, f"{path}:{call.lineno}: {ast.unparse(given)}"


def named(node: ast.expr) -> str:
    """The last name of what is called or named."""
    if isinstance(node, ast.Call):
        return named(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
