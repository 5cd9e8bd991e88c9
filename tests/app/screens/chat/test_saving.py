"""What the screen says of saving, and that neither opening nor deleting holds it up."""

import sqlite3
import threading

import pytest

from app.chat.conversation import Conversation
from app.history import store as store_module
from app.history.file import opening
from app.history.store import HistoryStore
from app.screens.dialogs.confirm import ConfirmScreen
from app.settings.paths import locations
from tests.app.driving import bar_text, plain, ready, say, wait_until
from tests.app.screens.chat.test_answers import ask, texts


@pytest.fixture
def gate(monkeypatch):
    """The history is opened when this is set."""
    event = threading.Event()
    real = store_module.open_database

    def open_later(*args, **options):
        event.wait()
        return real(*args, **options)

    monkeypatch.setattr(store_module, "open_database", open_later)
    yield event
    event.set()


def limit_pages(app, most):
    """Let the history file have so many pages; 0 for as many as it has."""

    def limit(database):
        pages = most or database.connection.execute("PRAGMA page_count").fetchone()[0]
        database.connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    app.context.history._ask(limit, None)


def status(screen):
    return plain(screen.query_one("#status"))


def notices(screen):
    return plain(screen.query_one("#notices")).replace("\n", " ")


async def test_the_screen_is_there_before_the_history_and_what_is_written_waits_for_it(
    make_app, engine, gate
):
    gate.set()
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
        screen.composer.insert("half")
    app.end_services()
    gate.clear()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: again.chat_screen and again.chat_screen.composer.has_focus)
        screen = again.chat_screen
        assert not screen.tabs.sessions
        assert bar_text(again).strip() == "" and str(screen.query_one("#welcome").render()) == ""
        await pilot.press("ctrl+t", "f4", "alt+w", "alt+1", "escape", "f3", "f3")
        await pilot.press("h", "i", "enter", "y", "o")
        assert screen.composer.text == "yo"
        gate.set()
        await ready(pilot)
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        assert texts(screen)[:3] == ["first question", "first answer", "hi"]
        assert screen.composer.text == "half\n\nyo"
        assert len(screen.tabs.sessions) == 1
    again.end_services()


async def test_enter_before_the_history_that_is_heard_of_after_it_is_sent(make_app, engine, gate):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: app.chat_screen and app.chat_screen.composer.has_focus)
        screen = app.chat_screen
        early = screen.composer.Submitted("hello", screen.composer.chat)
        gate.set()
        await ready(pilot)
        screen.composer.post_message(early)
        await wait_until(pilot, lambda: engine.generations)
        assert texts(screen)[0] == "hello"


async def test_leaving_before_the_history_is_there_loses_neither_tabs_nor_text(make_app, engine, gate):
    gate.set()
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
    app.end_services()
    gate.clear()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: again.chat_screen and again.chat_screen.composer.has_focus)
        await pilot.press("h", "i")
        again.exit()
    gate.set()
    again.end_services()
    store = HistoryStore(locations().history_file)
    (kept,) = store.list_open_tabs().ids
    assert store.load(kept).last_answer().text == "first answer"
    assert [line.title for line in store.recent()].count("New chat") == 1
    assert {store.load(line.id).draft for line in store.recent()} == {"", "hi"}
    store.close()


async def test_what_cannot_be_saved_stands_below_and_leaving_asks(make_app, engine, monkeypatch):
    monkeypatch.setattr(store_module, "_RETRY_SECONDS", 0.02)
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
        assert "NOT SAVED" not in status(screen)
        limit_pages(app, 0)
        await ask(pilot, engine, "long" * 4000, "second answer")
        await wait_until(pilot, lambda: "NOT SAVED" in status(screen))
        assert "NOT SAVED: history.db cannot be written (database or disk is full)" in notices(screen)
        await pilot.press("escape")
        assert "NOT SAVED" in notices(screen)
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("ctrl+q", "enter")
        await wait_until(pilot, lambda: app.screen is screen)
        assert app.is_running
        limit_pages(app, 1 << 30)
        await wait_until(pilot, lambda: "NOT SAVED" not in status(screen))
        assert notices(screen) == ""
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: not app.is_running)
    assert app.end_services() is True
    with sqlite3.connect(locations().history_file) as other:
        assert ("second answer",) in other.execute("SELECT text FROM messages").fetchall()


async def test_one_may_leave_without_what_cannot_be_saved(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        limit_pages(app, 0)
        await ask(pilot, engine, "long" * 4000, "an answer")
        await wait_until(pilot, lambda: app.context.history.unsaved)
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("left", "enter")
        await wait_until(pilot, lambda: not app.is_running)
    assert app.end_services() is False


async def test_what_happened_to_a_damaged_history_stands_until_it_was_read(make_app):
    file = locations().history_file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a database at all" * 100)
    app = make_app()
    async with app.run_test(size=(60, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: "history.db.corrupt-1" in notices(screen))
        assert "Esc hides this." in notices(screen)
        await pilot.press("escape")
        await wait_until(pilot, lambda: notices(screen) == "")


async def test_a_locked_history_is_said_where_it_stays(make_app, engine, monkeypatch):
    monkeypatch.setattr(opening, "_OPEN_SECONDS", 0.01)
    HistoryStore(locations().history_file).close()
    blocker = sqlite3.connect(locations().history_file, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: "database is locked" in notices(screen))
        assert "history.db.waiting-1" in notices(screen)
        await ask(pilot, engine, "first question", "first answer")
    app.end_services()
    blocker.close()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: "1 chat, 2 messages" in notices(screen))
        assert [line.title for line in again.context.history.recent()] == ["first question"]
    again.end_services()


async def test_a_tab_closes_while_the_history_is_busy(make_app, engine):
    app = make_app()
    busy, go_on = threading.Event(), threading.Event()

    def work():
        busy.set()
        go_on.wait()

    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+t")
        await ready(pilot)
        app.context.history._inbox.put(work)
        busy.wait()
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
        await say(pilot, "hello")
        await wait_until(pilot, lambda: engine.generations)
        go_on.set()


async def test_a_chat_that_was_deleted_elsewhere_is_told_when_it_goes_on(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
        assert app.context.history.flush()
        with sqlite3.connect(locations().history_file) as other:
            other.execute("PRAGMA foreign_keys = ON")
            other.execute("DELETE FROM conversations")
        await ask(pilot, engine, "second question", "second answer")
        await wait_until(
            pilot, lambda: any("deleted in another window" in n.message for n in app._notifications)
        )
        kept = app.context.history.load(screen.active.conversation.id)
        assert isinstance(kept, Conversation) and len(kept.nodes) == 4
