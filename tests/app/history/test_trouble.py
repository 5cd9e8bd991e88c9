"""A file that cannot be used, at the start or later: it is said, and nothing that was written is lost."""

import sqlite3
import threading

import pytest

from app.chat.conversation import Conversation
from app.history import store as store_module
from app.history.file import opening
from app.history.file.schema import STEPS
from tests.app.history.talks import same, talk


@pytest.fixture(autouse=True)
def short_retries(monkeypatch):
    monkeypatch.setattr(store_module, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(store_module, "_REOPEN_SECONDS", 0.01)
    monkeypatch.setattr(store_module, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(opening, "_OPEN_SECONDS", 0.01)


class Said:
    """Warnings, and a way to wait for one."""

    def __init__(self):
        self.lines = []
        self._changed = threading.Condition()

    def __call__(self, line):
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, words):
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in line for line in self.lines), 30)


def limit_pages(store, most):
    """Make the file as full as it is, or not; 0 asks for the number of pages now."""
    if not most:
        most = store._ask(lambda database: database.connection.execute("PRAGMA page_count").fetchone()[0], 0)
    store._ask(lambda database: database.connection.execute(f"PRAGMA max_page_count = {most}").fetchone(), 0)


def texts(path):
    with sqlite3.connect(path) as other:
        return {text for (text,) in other.execute("SELECT text FROM messages")}


def block(path):
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    return blocker


def test_a_full_disk_stands_on_the_screen_until_all_is_saved(open_store, path):
    said = Said()
    store = open_store(on_warning=said)
    limit_pages(store, 0)
    chats = [talk(str(number), question="long " * 4000, answer=f"answer {number}") for number in range(3)]
    for conversation in chats:
        store.save(conversation)
    store.save_tabs([chats[0].id], chats[0].id)
    assert not store.flush()
    assert store.unsaved
    assert store.standing[0].startswith("NOT SAVED: history.db cannot be written (database or disk is full)")
    assert {line.title for line in store.recent()} == {"0", "1", "2"}, "what waits is listed"
    assert store.load(chats[2].id) is chats[2], "a closed tab opens again"
    limit_pages(store, 1 << 30)
    said.wait_for("everything is saved")
    assert store.flush() and not store.unsaved and store.standing == ()
    assert {"answer 0", "answer 1", "answer 2"} <= texts(path)
    assert len(said.lines) == 2


def test_a_byte_that_becomes_free_is_found_without_a_new_message(open_store, path):
    said = Said()
    store = open_store(on_warning=said)
    limit_pages(store, 0)
    store.save(talk(question="long " * 4000))
    assert not store.flush()
    # Nothing more is asked or saved: the limit goes with the next try to write.
    store._inbox.put(lambda: store._database.connection.execute(f"PRAGMA max_page_count = {1 << 30}"))
    said.wait_for("everything is saved")
    assert "a sea bird" in texts(path)


def test_closing_says_whether_all_was_written(open_store):
    store = open_store()
    limit_pages(store, 0)
    store.save(talk(question="long " * 4000))
    assert store.close() is False
    other = open_store()
    other.save(talk())
    assert other.close() is True


def test_closing_says_that_what_is_only_in_memory_is_lost(open_store, path, monkeypatch):
    monkeypatch.setattr(store_module, "_REOPEN_SECONDS", 1e6)
    path.parent.write_text("a file where a folder should be")
    empty, other = open_store(), open_store()
    assert empty.close() is True
    other.save(talk())
    assert other.close() is False


def test_a_delete_that_could_not_be_written_is_written_later(open_store, path):
    said = Said()
    store = open_store(on_warning=said)
    conversation = talk()
    store.save(conversation)
    assert store.flush()
    blocker = sqlite3.connect(path, isolation_level=None)
    store._ask(lambda database: database.connection.execute("PRAGMA busy_timeout = 1"), None)
    blocker.execute("BEGIN IMMEDIATE")
    store.hide(conversation.id)
    assert store.unsaved
    blocker.close()
    said.wait_for("everything is saved")
    assert store.load(conversation.id) is None


def newer(path):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")

    class Blocker:
        def close(self):
            with sqlite3.connect(path) as connection:
                connection.execute(f"PRAGMA user_version = {len(STEPS)}")

    return Blocker()


@pytest.mark.parametrize("trouble", [block, newer])
def test_what_is_written_while_the_file_cannot_be_opened_joins_it_at_a_later_start(
    open_store, path, monkeypatch, trouble
):
    monkeypatch.setattr(store_module, "_REOPEN_SECONDS", 1e6)
    before = talk("before")
    store = open_store()
    store.save(before)
    store.close()
    blocker = trouble(path)
    store = open_store()
    assert "history.db" in store.standing[0] and "history.db.waiting-1" in store.standing[0]
    assert not store.unsaved, "it is in a file"
    written, begun = talk("meanwhile"), Conversation()
    begun.draft = "half a thought"
    store.save(written)
    store.save(begun)
    assert store.flush()
    store.close()
    blocker.close()
    store = open_store()
    assert "history.db.waiting-1" in store.notices[0] and "2 chats, 2 messages" in store.notices[0]
    same(store.load(written.id), written)
    same(store.load(begun.id), begun)
    same(store.load(before.id), before)
    assert store.search("tern")
    assert [file.name for file in path.parent.glob("*waiting*")] == []
    assert store.dismiss() and store.notices == store.standing == ()


def test_a_file_that_can_be_opened_again_takes_all_in_while_the_app_runs(open_store, path):
    open_store().close()
    blocker = block(path)
    said = Said()
    store = open_store(on_warning=said)
    conversation = talk()
    node = conversation.begin_answer("m")
    store.save(conversation)
    assert store.standing
    blocker.close()
    said.wait_for("can be used again")
    conversation.append(node.id, "goes on", [1])
    store.append(conversation, node.id)
    assert store.flush()
    assert {"a sea bird", "goes on"} <= texts(path)
    assert store.standing == ()
    assert [file.name for file in path.parent.glob("*waiting*")] == []


def test_two_apps_that_cannot_open_the_file_write_beside_each_other(open_store, path, monkeypatch):
    monkeypatch.setattr(store_module, "_REOPEN_SECONDS", 1e6)
    open_store().close()
    blocker = block(path)
    stores = [open_store(), open_store()]
    for number, store in enumerate(stores):
        store.save(talk(str(number)))
        assert store.flush()
    blocker.close()
    third = open_store()
    assert third.recent() == [], "files in use stay"
    for store in stores:
        store.close()
    third.close()
    assert {line.title for line in open_store().recent()} == {"0", "1"}


def test_where_nothing_can_be_written_it_says_so_as_long_as_the_app_runs(open_store, path):
    path.parent.write_text("a file where a folder should be")
    said = Said()
    store = open_store(on_warning=said)
    assert store.unsaved and store.standing[0].startswith("NOT SAVED: history.db cannot be opened")
    assert store.flush(), "nothing was written yet"
    conversation = talk()
    store.save(conversation)
    assert not store.flush()
    path.parent.unlink()
    said.wait_for("can be used again")
    assert not store.unsaved
    same(store.load(conversation.id), conversation)
    assert "a sea bird" in texts(path)
