"""Chats in order: pinned, archived, tagged, deleted and brought back, in old files too."""

import sqlite3
import time

import pytest

from app.chat.marks import Marks, tags_from
from app.history import store as store_module
from app.history.file import schema
from app.history.store import HistoryStore
from tests.app.history.talks import same, talk


def titles(found):
    return [summary.title for summary in found]


@pytest.fixture
def three(open_store):
    store = open_store()
    chats = [talk("a", answer="a sea bird"), talk("b", answer="a bird"), talk("c", answer="a fish")]
    for age, chat in enumerate(chats):
        chat.updated = time.time() - age
        store.save(chat)
    return store, *chats


def test_pinned_chats_stand_first_and_archived_ones_in_the_archive_only(three):
    store, a, _, c = three
    assert store.mark(c.id, Marks(pinned=True))
    assert store.mark(a.id, Marks(archived=True))
    assert titles(store.recent()) == ["c", "b"]
    assert titles(store.search("bird")) == ["b"]
    assert titles(store.search("#archived")) == titles(store.search("#archived bird")) == ["a"]
    assert titles(store.search("#pinned")) == ["c"]
    assert store.mark("nobody", Marks(pinned=True)) is False


def test_tags_are_found_by_their_beginning_and_with_words(three):
    store, a, b, _ = three
    assert store.mark(a.id, Marks(tags=("sea", "work/x")))
    assert store.mark(b.id, Marks(tags=("work",)))
    assert titles(store.search("#wor")) == ["a", "b"]
    assert titles(store.search("#WORK #sea")) == ["a"]
    assert titles(store.search("bird #sea")) == ["a"]
    assert store.search("#sea fish") == []
    assert store.recent()[0].marks == Marks(tags=("sea", "work/x"))
    store.mark(a.id, Marks())
    assert titles(store.search("#work")) == ["b"]


def test_words_become_tags():
    assert tags_from(["#Work", "work", "a b", "", "#", "#archived", "x" * 99]) == ("ab", "work", "x" * 40)


def test_marks_stay_when_the_chat_goes_on(three):
    store, a, *_ = three
    marks = Marks(True, False, ("sea",))
    store.mark(a.id, marks)
    a.add_user("and a gull?")
    store.save(a)
    assert store.recent(1)[0].marks == marks


def test_a_deleted_chat_comes_back_whole_with_its_marks(three):
    store, a, *_ = three
    store.mark(a.id, Marks(tags=("sea",)))
    assert store.hide(a.id)
    assert titles(store.recent()) == ["b", "c"]
    assert store.search("sea") == store.search("#sea") == []
    assert store.load(a.id) is None
    assert store.bring_back(a.id)
    same(store.load(a.id), a)
    assert titles(store.search("#sea")) == ["a"]
    store.delete_hidden(a.id)
    assert store.load(a.id) is not None, "what was brought back is not deleted"


def test_a_deleted_chat_goes_for_good_at_a_start_after_the_time_to_undo(three, open_store, path, monkeypatch):
    store, a, *_ = three
    assert store.hide(a.id)
    store.close()
    assert open_store().bring_back(a.id) and store_module.UNDO_SECONDS >= 30
    store = open_store()
    assert store.hide(a.id)
    store.close()
    monkeypatch.setattr(store_module, "UNDO_SECONDS", -1.0)
    store = open_store()
    assert store.bring_back(a.id) is False
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (4,)


def test_a_history_of_the_second_version_opens(path, monkeypatch, open_store):
    steps = schema.STEPS
    monkeypatch.setattr(schema, "STEPS", steps[:2])
    path.parent.mkdir(parents=True)
    old = sqlite3.connect(path, isolation_level=None)
    schema.migrate(old)
    chat = talk()
    old.execute(
        "INSERT INTO conversations VALUES (?, 'Old one', '/m', '', '', 'n', '', 1.0, 2.0)", (chat.id,)
    )
    old.execute(
        "INSERT INTO messages VALUES (1, 'n', ?, 0, NULL, 'user', 'tern?', '', x'', 0, 'complete',"
        " NULL, NULL, 1.0, NULL, 0)",
        (chat.id,),
    )
    old.execute("INSERT INTO open_tabs VALUES (0, 0, ?, 1)", (chat.id,))
    old.close()
    monkeypatch.setattr(schema, "STEPS", steps)
    store = open_store()
    assert not store.standing and not store.notices
    assert titles(store.recent()) == ["Old one"]
    assert store.list_open_tabs().ids == (chat.id,)
    assert store.mark(chat.id, Marks(True, False, ("x",)))
    assert [node.text for node in store.load(chat.id).path()] == ["tern?"]


def test_marks_survive_a_damaged_file(three, open_store, path):
    store, a, b, _ = three
    store.mark(a.id, Marks(True, False, ("sea",)))
    store.mark(b.id, Marks(archived=True))
    store.close()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 100)
        file.write(b"\0" * 100)
    from app.history.file import opening

    database = opening.open_database(path, damaged="said so")
    database.close()
    again = HistoryStore(path)
    try:
        assert again.search("#sea")[0].marks == Marks(True, False, ("sea",))
        assert titles(again.search("#archived")) == ["b"]
    finally:
        again.close()
