"""Of a damaged file what can be read is taken over; the file is kept aside and named."""

import os
import sqlite3

from app.history.file import opening
from tests.app.history.talks import same, talk

PAGE = 4096


def test_what_can_be_read_of_a_damaged_file_is_taken_over(open_store, path):
    store = open_store()
    chats = [talk(f"chat {number}", answer=f"answer {number} " * 300) for number in range(60)]
    for conversation in chats:
        store.save(conversation)
    store.save_tabs([chats[0].id, chats[59].id], chats[59].id)
    store.close()
    raw = bytearray(path.read_bytes())
    middle = len(raw) // PAGE // 2 * PAGE
    raw[middle : middle + 4 * PAGE] = os.urandom(4 * PAGE)
    path.write_bytes(raw)
    store = open_store()
    assert "damaged" in store.notices[0] and "history.db.corrupt-1" in store.notices[0]
    assert "60 chats" in store.notices[0]
    found = [store.load(conversation.id) for conversation in chats]
    whole = [one for one, other in zip(found, chats, strict=True) if list(one.nodes) == list(other.nodes)]
    assert len(whole) >= 40
    assert any(one.title == "chat 59" for one in whole), "what stands behind the damage too"
    assert store.list_open_tabs().active == chats[59].id
    assert store.search("59")
    assert path.with_name("history.db.corrupt-1").exists()


def test_a_stand_in_that_is_damaged_or_cannot_be_read_is_named_and_stays(open_store, path):
    open_store().close()
    path.with_name("history.db.waiting-1").write_bytes(b"not a database at all" * 100)
    path.with_name("history.db.waiting-2").mkdir()
    store = open_store()
    assert "history.db.waiting-1.corrupt-1" in store.notices[0]
    assert "history.db.waiting-2" in store.notices[1]
    assert path.with_name("history.db.waiting-1.corrupt-1").exists()
    assert not store.unsaved
    store.close()
    open_store()
    assert [file.name for file in path.parent.glob("*corrupt*")] == ["history.db.waiting-1.corrupt-1"]


def test_messages_without_their_chat_get_one(open_store, path):
    conversation = talk("lost")
    store = open_store()
    store.save(conversation)
    store.close()
    aside = path.with_name("aside.db")
    path.rename(aside)
    with sqlite3.connect(aside) as source:
        source.execute("PRAGMA foreign_keys = OFF")
        source.execute("DELETE FROM conversations")
    source.close()
    store = open_store()
    store._ask(lambda database: opening._salvage(aside, database), None)
    found = store.load(conversation.id)
    assert found.title == "what is a tern"
    assert [node.text for node in found.path()] == ["what is a tern", "a sea bird"]


def test_damage_that_is_met_later_loses_nothing_that_can_be_read(open_store, path, monkeypatch):
    monkeypatch.setattr(opening, "_CHECKED_BYTES", 0)
    warnings = []
    store = open_store()
    closed, shown = talk("closed", answer="kept " * 3000), talk("shown")
    store.save(closed)
    store.save(shown)
    store.close()
    raw = bytearray(path.read_bytes())
    store = open_store(on_warning=warnings.append)
    with sqlite3.connect(path) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages_conversation'")
        page = root.fetchone()[0]
    store.close()
    raw[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
    path.write_bytes(raw)
    store = open_store(on_warning=warnings.append)
    same(store.load(closed.id), closed)
    same(store.load(shown.id), shown)
    assert any("history.db.corrupt-1" in line for line in warnings)


def test_a_file_that_another_window_has_moved_aside_is_written_no_more(open_store, path):
    store = open_store()
    open_chat = talk("open")
    store.save(open_chat)
    assert store.flush()
    path.rename(path.with_name("history.db.corrupt-1"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    open_chat.add_user("goes on")
    store.save(open_chat)
    assert store.flush()
    store.close()
    same(open_store().load(open_chat.id), open_chat)
