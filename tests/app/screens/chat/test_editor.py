"""The message in the reader's own editor."""

import contextlib
import shlex
import sys

import pytest

from app.terminal.editor import EditorError, edited, editor_command
from tests.app.driving import ready, wait_until
from tests.app.screens.chat.test_slash import toasts

WRITE = "import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t.upper() + '\\n')"
LOOK = "import os, sys; assert oct(os.stat(sys.argv[1]).st_mode)[-3:] == '600'"


def python(code):
    return [sys.executable, "-c", code]


def test_what_the_editor_writes_comes_back_from_a_private_file():
    assert edited("one\ntwo", python(WRITE)) == "ONE\nTWO"
    assert edited("kept\n", python(LOOK)) == "kept\n"


def test_an_editor_that_fails_or_is_not_there_says_so():
    with pytest.raises(EditorError, match="ended with code 3; the message is as before"):
        edited("x", python("raise SystemExit(3)"))
    with pytest.raises(EditorError, match="EDITOR names no-such-editor, which is not there"):
        editor_command({"EDITOR": "no-such-editor -w"})
    with pytest.raises(EditorError, match="VISUAL is no command"):
        editor_command({"VISUAL": "a 'b", "EDITOR": "vi"})


def test_visual_goes_before_editor():
    assert editor_command({"VISUAL": f"{sys.executable} -w", "EDITOR": "x"}) == [sys.executable, "-w"]


@pytest.mark.parametrize("by", ["key", "command"])
async def test_the_message_is_written_on_in_the_editor(make_app, monkeypatch, by):
    app = make_app()
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    monkeypatch.setenv(
        "VISUAL", shlex.join(python(WRITE if by == "key" else WRITE.replace("t.upper()", "'made'")))
    )
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("one" if by == "key" else "")
        await pilot.press(*(["alt+e"] if by == "key" else [*"/edit", "enter"]))
        await wait_until(pilot, lambda: screen.composer.text == ("ONE" if by == "key" else "made"))
        assert not app._batch_count


async def test_a_failing_editor_leaves_the_message(make_app, monkeypatch):
    app = make_app()
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    monkeypatch.setenv("VISUAL", shlex.join(python("raise SystemExit(1)")))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("one")
        await pilot.press("alt+e")
        await wait_until(pilot, lambda: any("ended with code 1" in text for text in toasts(app)))
        assert screen.composer.text == "one" and not app._batch_count
