"""Code blocks by their numbers, links of an answer, and selecting by keys."""

import sys
from pathlib import Path

import pytest
from textual.widgets import OptionList

from app.screens.chat.reading import reading_actions
from app.terminal.clipboard import CopyResult
from app.terminal.opening import open_address, open_command
from tests.app.driving import ready, say, wait_until
from tests.app.screens.chat.test_answers import ask, shown_rows

CODE = "One:\n\n```python\na = 1\n```\n\ntwo:\n\n```\nb\n```\n"
LINKS = "See [the notes](https://a.b/notes) or https://a.b/c and file:///tmp/x, not [y](javascript:z)."


@pytest.fixture
def copied():
    return []


@pytest.fixture
def copying_app(make_app, copied):
    def copy(text, write):
        copied.append(text)
        return CopyResult(True, "Copied it.")

    return make_app(copy=copy)


def told(app) -> list[str]:
    return [note.message for note in app._notifications]


async def test_a_code_block_is_copied_by_its_number(copying_app, engine, copied):
    app = copying_app
    async with app.run_test(size=(90, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "code", CODE)
        assert "1 · python" in shown_rows(screen.deck.transcript)
        await say(pilot, "/code 2")
        await wait_until(pilot, lambda: copied == ["b"] and "Code block 2. Copied it." in told(app))
        await say(pilot, "/code 3")
        await wait_until(pilot, lambda: any("from 1 to 2" in text for text in told(app)))
        assert screen.composer.text == "/code 3" and len(copied) == 1


async def test_a_code_block_is_saved_and_a_file_that_is_there_is_asked_about(
    make_app, engine, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(90, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "code", CODE)
        await say(pilot, "/save-code 1")
        await wait_until(pilot, lambda: (tmp_path / "code-1.py").exists())
        assert (tmp_path / "code-1.py").read_text() == "a = 1\n"
        mine = tmp_path / "mine.txt"
        mine.write_text("mine")
        await say(pilot, f"/save-code 2 {mine}")
        await wait_until(pilot, lambda: app.screen is not screen)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen)
        assert mine.read_text() == "mine"
        await say(pilot, f"/save-code 2 {mine}")
        await wait_until(pilot, lambda: app.screen is not screen)
        await pilot.click("#yes")
        await wait_until(pilot, lambda: mine.read_text() == "b\n")
        await say(pilot, f"/save-code 2 {tmp_path}/no/such/file")
        await wait_until(pilot, lambda: any("was not written (No such file" in text for text in told(app)))


async def test_a_code_block_opens_in_the_editor_and_what_is_changed_is_copied(
    copying_app, engine, copied, tmp_path, monkeypatch
):
    script = tmp_path / "editor.py"
    script.write_text("import sys\nwith open(sys.argv[1], 'a') as f: f.write('# ' + sys.argv[1][-9:])\n")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    app = copying_app
    async with app.run_test(size=(90, 30)) as pilot:
        screen = await ready(pilot)
        monkeypatch.setattr(app, "suspend", app.batch_update)
        await ask(pilot, engine, "code", CODE)
        await say(pilot, "/open-code 1")
        await wait_until(pilot, lambda: copied == ["a = 1# code-1.py"])
        assert screen.active.conversation.last_answer().text == CODE


async def test_links_are_listed_and_only_what_may_be_opened_is(make_app, engine, monkeypatch):
    opened = []
    monkeypatch.setattr(reading_actions, "open_address", lambda address, environ: not opened.append(address))
    app = make_app()
    async with app.run_test(size=(90, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "links", LINKS)
        await say(pilot, "/links")
        await wait_until(pilot, lambda: app.screen is not screen)
        assert app.screen.query_one(OptionList).option_count == 3
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: opened == ["https://a.b/c"])
        await say(pilot, "/links 3")
        await wait_until(pilot, lambda: opened[1:] == ["file:///tmp/x"])
        await say(pilot, "/links 4")
        await wait_until(pilot, lambda: any("a number from 1 to 3" in text for text in told(app)))
        screen.composer.put("")
        transcript = screen.deck.transcript
        rows = shown_rows(transcript).splitlines()
        y = next(i for i, row in enumerate(rows) if "the notes" in row)
        x = rows[y].index("the notes") + 2
        await pilot.click(transcript, offset=(x, y))
        await pilot.click(transcript, offset=(x, y), control=True)
        await wait_until(pilot, lambda: opened[2:] == ["https://a.b/notes"])


def test_addresses_open_only_on_a_desktop_of_ones_own_and_with_a_known_scheme(tmp_path):
    assert open_command({"DISPLAY": ":0", "SSH_TTY": "x"}, "linux") is None
    assert open_command({}, "linux") is None and open_command({}, "darwin") == "open"
    tool = tmp_path / "xdg-open"
    tool.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/asked\n')
    tool.chmod(0o755)
    environ = {"DISPLAY": ":0", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert open_address("https://a.b/?x=1&y=$z", environ, "linux")
    assert Path(tmp_path, "asked").read_text() == "https://a.b/?x=1&y=$z"
    assert not open_address("javascript:alert(1)", environ, "linux")
    assert not open_address("--help", environ, "linux")


async def test_keys_select_across_messages_and_copy(copying_app, engine, copied):
    app = copying_app
    async with app.run_test(size=(90, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "the question", "An *answer*\n\n```py\nx = 1\ny = 2\n```\n")
        await pilot.press("alt+j")
        transcript = screen.deck.transcript
        await wait_until(pilot, lambda: transcript.has_focus)
        await pilot.press("ctrl+home", "down", *["shift+down"] * 3, "shift+end", "enter")
        await wait_until(pilot, lambda: copied == ["the question\n\nPocket 46M\nAn answer"])
        await wait_until(pilot, lambda: screen.composer.has_focus)
        assert "Selection. Copied it." in told(app)
        await pilot.press("alt+j", "up", "b")
        await wait_until(
            pilot, lambda: copied[1:] == ["x = 1\ny = 2"] and "Code block 1. Copied it." in told(app)
        )
        await pilot.press("alt+j", "m")
        await wait_until(pilot, lambda: copied[2:] == ["An *answer*\n\n```py\nx = 1\ny = 2\n```\n"])
        await pilot.press("alt+y")
        await wait_until(pilot, lambda: copied[3:] and copied[3].startswith("You:\n\nthe question\n\nPocket"))
        await pilot.press("alt+j", "escape", *"hi")
        await wait_until(pilot, lambda: screen.composer.text == "hi" and len(copied) == 4)


async def test_code_and_wrapped_rows_are_selected_without_what_stands_before_them(copying_app, engine):
    app = copying_app
    async with app.run_test(size=(60, 30)) as pilot:
        screen = await ready(pilot)
        code = "value = " + "x" * 90
        await ask(pilot, engine, "q", f"- one\n\n```py\n{code}\n  b\n```\n")
        await pilot.press("alt+j", "ctrl+home", "ctrl+shift+end")
        await wait_until(pilot, lambda: "• one\n\n 1 · py" in (screen.get_selected_text() or ""))
        assert f"\n{code}\n  b\n" in screen.get_selected_text()
