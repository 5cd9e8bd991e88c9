"""Files, folders and chats behind an @: completed, attached as chips, sent as text."""

import threading

import pytest

from app.screens.chat.writing import writing_actions
from app.settings.file import GeneralSettings, Settings
from tests.app.driving import ready, say, wait_until
from tests.app.screens.chat.test_slash import begin, offered, toasts

NOTES = "File notes.md:\n```md\na word\n```"
FOLDED = "see \n\n[file #1 notes.md: 31 B] "


@pytest.fixture(autouse=True)
def start(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("start")
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("x = 1\n")
    (folder / "notes.md").write_text("a word\n")
    (folder / "image.png").write_bytes(b"\x89PNG\x00")
    monkeypatch.chdir(folder)
    return folder


async def attach_notes(pilot):
    screen = pilot.app.chat_screen
    await begin(pilot, "see @not")
    await pilot.press("enter")
    await wait_until(pilot, lambda: "[file #1" in screen.composer.text)
    return screen


async def test_a_file_becomes_a_chip_and_its_text_is_sent(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        screen = await attach_notes(pilot)
        chip = screen.composer.text.removeprefix("see ").strip()
        assert chip.startswith("[file #1 notes.md: 31 B, ") and chip.endswith(" tokens]")
        await say(pilot, "please")
        await wait_until(pilot, lambda: engine.generations)
        assert screen.active.conversation.last_user().text == f"see \n\n{NOTES}\n\n please"


async def test_tab_goes_into_a_folder_and_enter_attaches_it(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await begin(pilot, "@s")
        await pilot.press("tab")
        await wait_until(pilot, lambda: offered(screen) == ["@src/a.py"])
        await pilot.press("backspace")
        await wait_until(pilot, lambda: offered(screen) == ["@src/"])
        await pilot.press("enter")
        await wait_until(pilot, lambda: "[folder #1 src: " in screen.composer.text)
        assert (
            screen.composer.draft.expanded.strip()
            == "Folder src, 1 file:\n\nFile src/a.py:\n```py\nx = 1\n```"
        )


async def test_what_cannot_be_attached_says_why_and_what_was_written_stays(make_app):
    app = make_app(Settings(general=GeneralSettings(attach_limit="4 B")))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        for written, why in (("@note", "notes.md has 7 B, more than 4 B"), ("@ima", "more than 4 B")):
            screen.composer.put("")
            await begin(pilot, written)
            await pilot.press("enter")
            await wait_until(pilot, lambda why=why: any(why in text for text in toasts(app)))
            assert screen.composer.text == written


async def test_keys_pressed_while_a_file_is_read_come_behind_its_chip(make_app, monkeypatch):
    gate, read = threading.Event(), writing_actions.read_attachment
    monkeypatch.setattr(writing_actions, "read_attachment", lambda *what: (gate.wait(30), read(*what))[1])
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await begin(pilot, "@notes")
        await pilot.press("enter", "x", "y")
        assert screen.composer.text == "@notes"
        gate.set()
        await wait_until(pilot, lambda: screen.composer.text.endswith("tokens] xy"))


async def test_an_attachment_survives_a_restart_and_an_edit(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await attach_notes(pilot)
    app.end_services()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: screen.composer.text == FOLDED)
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("f4")
        await wait_until(pilot, lambda: screen.composer.text == FOLDED)
        assert screen.composer.draft.message == f"see \n\n{NOTES} "
    again.end_services()


async def test_another_chat_is_put_in(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "On terns")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[-1].feed("They are birds.")
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        app.context.history.flush()
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2 and screen.tabs.position == 1)
        await begin(pilot, "@ch")
        await pilot.press("enter")
        await wait_until(pilot, lambda: offered(screen) == ["@chat:On terns"])
        await pilot.press("enter")
        await wait_until(pilot, lambda: "[chat #1 On terns: " in screen.composer.text)
        expanded = screen.composer.draft.expanded.strip()
        assert expanded == "Chat On terns:\n```\nUser: On terns\n\nAssistant: They are birds.\n```"


async def test_an_at_within_a_word_or_of_nothing_offers_nothing(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "me@notes and @xyzzy")
        await wait_until(pilot, lambda: engine.generations)
        assert screen.active.conversation.last_user().text == "me@notes and @xyzzy"
