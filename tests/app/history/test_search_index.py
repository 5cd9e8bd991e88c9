"""The index of what stands inside words: kept with the messages, and made for those from before it."""

import sqlite3
import time

import pytest

from app.chat.marks import Marks
from app.history import search
from app.history.file import search_index
from app.history.file.opening import open_database
from app.history.file.search_index import create_search_index, fill_parts, parts_since
from app.history.search import search_conversations
from app.history.wanted import wanted_by
from tests.app.history.talks import talk


def inside(database, query):
    """Titles found, with the messages themselves out of reach."""
    found = search_conversations(database.connection, wanted_by(query), 10, database.searchable)
    return [chat.title for chat in found]


def in_parts(connection, word):
    rows = connection.execute("SELECT rowid FROM message_parts WHERE message_parts MATCH ?", (f'"{word}"',))
    return [number for (number,) in rows]


@pytest.fixture
def old(open_store, path):
    """A history that was written before there was an index of parts."""
    store = open_store()
    for number in range(5):
        store.save(talk(f"chat {number}", f"question {number}", "the arctic TERN flies far"))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE message_parts")
        connection.execute("DROP TABLE message_parts_since")
    connection.close()
    return path


def test_what_was_written_before_is_found_at_once_and_comes_into_the_index_little_by_little(old, monkeypatch):
    monkeypatch.setattr(search_index, "_FILLED_AT_ONCE", 3)
    database = open_database(old)
    connection = database.connection
    assert parts_since(connection) == 11 and in_parts(connection, "ern") == []
    steps = 0
    while True:
        assert sorted(inside(database, "rctic")) == [f"chat {number}" for number in range(5)]
        if not fill_parts(connection):
            break
        steps += 1
    assert steps == 3 and parts_since(connection) == 0
    assert in_parts(connection, "ern") == [2, 4, 6, 8, 10]
    assert not fill_parts(connection)
    database.close()


def test_the_store_fills_the_index_while_nothing_is_asked(old, open_store):
    store = open_store()
    other = sqlite3.connect(old)
    while parts_since(other) != 0:
        time.sleep(0.005)
    other.close()
    assert len(store.search("rctic")) == 5


def test_a_message_that_changes_or_goes_before_its_turn_leaves_the_index_sound(old):
    database = open_database(old)
    connection = database.connection
    search_index.index_text(connection, 2, "an albatross")
    search_index.unindex(connection, [4])
    while fill_parts(connection):
        pass
    assert in_parts(connection, "ern") == [6, 8, 10] and in_parts(connection, "tro") == [2]
    search_index.index_text(connection, 2, "a petrel")
    search_index.unindex(connection, [6])
    assert in_parts(connection, "ern") == [8, 10] and in_parts(connection, "tro") == []
    connection.execute("INSERT INTO message_parts (message_parts) VALUES ('integrity-check')")
    database.close()


def test_an_index_that_another_program_did_not_keep_up_is_begun_anew(old):
    database = open_database(old)
    connection = database.connection
    while fill_parts(connection):
        pass
    connection.execute("INSERT INTO message_index (rowid, text) VALUES (11, 'written without')")
    create_search_index(connection)
    assert parts_since(connection) == 12
    while fill_parts(connection):
        pass
    assert in_parts(connection, "tho") == [11] and len(in_parts(connection, "ern")) == 5
    database.close()


def test_without_trigrams_messages_are_compared_and_the_index_is_given_up(old, monkeypatch):
    database = open_database(old)
    assert parts_since(database.connection) is not None
    database.close()
    monkeypatch.setattr(
        search_index, "_PARTS", "CREATE VIRTUAL TABLE none USING fts5(text, tokenize = 'none')"
    )
    database = open_database(old)
    assert database.searchable and parts_since(database.connection) is None
    assert len(inside(database, "rctic")) == 5
    database.close()


def test_a_deleted_chat_leaves_nothing_in_the_index(open_store):
    store = open_store()
    chat = talk("birds", "what is a tern", "zyzzyva")
    store.save(chat)
    assert [hit.title for hit in store.search("yzzyv")] == ["birds"]
    store.hide(chat.id)
    store.delete_hidden(chat.id)
    assert store._ask(lambda database: in_parts(database.connection, "zyz"), None) == []


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("RCTIC", ["birds"]),
        ("rger", ["birds"]),
        ("ÄRGERL", ["birds"]),
        ("100%", ["fish"]),
        ("0_%", []),
        ("ter lies", ["birds"]),
        ("の", ["fish"]),
        ("x", []),
        ("far t", ["birds"]),
        ("far q", []),
        ("inglongword", ["fish"]),
        ('"fi', ["fish"]),
    ],
)
def test_pieces_of_words_and_letters(open_store, query, titles):
    store = open_store()
    store.save(talk("birds", "is it verärgerlich", "The arctic tern flies far."))
    store.save(talk("fish", "why a cod", 'A "fish", 世界中の魚 (100%) a' + "ga" * 40 + "inglongword"))
    assert [hit.title for hit in store.search(query)] == titles


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("STRASSE", ["Die Straße"]),
        ("straße die", ["Die Straße"]),
        ("50%", ["50% of It"]),
        ("of it", ["50% of It"]),
        ("o_it", []),
        ("ЧАЙКА", ["Чайка"]),
    ],
)
def test_titles_are_found_blind_to_case_in_every_script(open_store, query, titles):
    store = open_store()
    for title in ("Die Straße", "50% of It", "Чайка"):
        store.save(talk(title, "zzz", "zzz"))
    assert [hit.title for hit in store.search(query)] == titles


def test_a_letter_in_a_tag_is_looked_for_in_the_chats_that_have_it(open_store, monkeypatch):
    monkeypatch.setattr(search, "_full_text", lambda *_: pytest.fail("the beginnings of half of all words"))
    store = open_store()
    for number in range(6):
        chat = talk(f"chat {number}", "what is a tern", f"a bird that flies {number}")
        store.save(chat)
        if number % 2:
            store.mark(chat.id, Marks(tags=("work",)))
    assert [hit.title for hit in store.search("#work b", 3)] == ["chat 5", "chat 3", "chat 1"]
    assert store.search("#work b", 3)[0].snippet == "a bird that flies 5"


def test_a_history_from_before_gets_the_index_of_titles(old):
    with sqlite3.connect(old) as connection:
        connection.execute("DROP INDEX conversations_titles")
    connection.close()
    database = open_database(old)
    steps = database.connection.execute(
        "EXPLAIN QUERY PLAN SELECT c.id FROM conversations c WHERE c.title LIKE '%a%' AND c.deleted IS NULL"
        " AND c.archived = 0 ORDER BY c.pinned DESC, c.updated DESC"
    ).fetchall()
    assert "COVERING INDEX conversations_titles" in steps[0][3]
    database.close()
