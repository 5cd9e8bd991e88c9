"""One odd row: that chat opens without what is odd, the rest as always, and what is odd stays in the file."""

import logging
import sqlite3

import pytest

from tests.app.history.talks import same, talk

ODD = [
    ("messages", "role = 'robot'", "role"),
    ("messages", "role = 7", "role"),
    ("messages", "status = 'thinking'", "status"),
    ("messages", "status = x'00ff'", "status"),
    ("messages", """stats = '{"tokens": 3, "tok_s": 2.0, "joules": 4}'""", "joules"),
    ("messages", "stats = '[1'", "stats"),
    ("messages", "stats = '7'", "stats"),
    ("messages", """stats = '{"tokens": "three", "tok_s": 2.0}'""", "stats"),
    ("messages", "token_ids = x'010203'", "token_ids"),
    ("messages", "token_ids = 'text'", "token_ids"),
    ("messages", "reasoning_tokens = 'many'", ""),
    ("messages", "reasoning_tokens = 1e300", ""),
    ("messages", "created = 'yesterday'", ""),
    ("messages", "text = CAST(x'fffe41' AS TEXT)", ""),
    ("messages", "text = x'ff41', reasoning = 5", ""),
    ("messages", "parent = 'nowhere'", "nowhere"),
    ("messages", "parent = id", ""),
    ("messages", "error = 5, model = 6", ""),
    ("messages", "calls = 'none'", "calls"),
    ("messages", """calls = '[{"name": 5}]'""", "calls"),
    ("messages", "calls = x'ff'", "calls"),
    ("messages", "votes = '[]'", "votes"),
    ("messages", """votes = '{"a": "best"}'""", "votes"),
    ("conversations", """sampling = '{"tools": 5}'""", ""),
    ("conversations", "leaf = 'nowhere'", ""),
    ("conversations", "sampling = 'warm'", "sampling"),
    ("conversations", """sampling = '{"max_tokens": "all"}'""", "sampling"),
    ("conversations", "updated = 'now', created = x'00'", ""),
    ("conversations", "title = x'ff', draft = 6, system_prompt = CAST(x'ff' AS TEXT)", ""),
    ("conversations", "model_path = 9", ""),
]


@pytest.fixture
def kept(open_store):
    store = open_store()
    odd, plain = talk("odd"), talk("plain")
    answer = odd.path()[-1]
    odd.add_user("and then?")
    for conversation in (odd, plain):
        store.save(conversation)
    store.save_tabs([odd.id, plain.id], odd.id)
    store.close()
    return odd, plain, answer


@pytest.mark.parametrize(("table", "change", "word"), ODD, ids=lambda value: str(value)[:40])
def test_what_is_odd_is_left_out_logged_and_kept(open_store, path, kept, caplog, table, change, word):
    odd, plain, answer = kept
    key = answer.id if table == "messages" else odd.id
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {change} WHERE id = ?", (key,))
        connection.text_factory = bytes
        before = connection.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchall()
    store = open_store()
    with caplog.at_level(logging.WARNING):
        assert store.list_open_tabs().ids == (odd.id, plain.id)
        found = store.load(odd.id)
    assert word in caplog.text
    shown = [node.text for node in found.path()]
    assert shown[-1] == "and then?"
    assert shown[0] == "what is a tern" or "parent" in change
    same(store.load(plain.id), plain)
    assert {line.id for line in store.recent()} == {odd.id, plain.id}
    store.search("tern")
    store.save(found)
    assert store.flush()
    with sqlite3.connect(path) as connection:
        connection.text_factory = bytes
        assert connection.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchall() == before
    found.add_user("goes on")
    store.save(found)
    assert [node.text for node in store.load(odd.id).path()] == [*shown, "goes on"]


def test_columns_of_a_later_version_stay(open_store, path, kept):
    odd, *_ = kept
    with sqlite3.connect(path) as connection:
        for table in ("conversations", "messages", "open_tabs"):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN extra TEXT DEFAULT 'e'")
    store = open_store()
    found = store.load(odd.id)
    same(found, odd)
    found.title = "renamed"
    new = talk("new")
    store.save(found)
    store.save(new)
    store.save_tabs([new.id], new.id)
    assert store.flush()
    same(store.load(new.id), new)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT DISTINCT extra FROM conversations").fetchall() == [("e",)]


def test_messages_in_a_circle_open(open_store, path, kept):
    odd, *_ = kept
    first, second, third = list(odd.nodes)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE messages SET parent = ? WHERE id = ?", (third, first))
    found = open_store().load(odd.id)
    assert [node.id for node in found.path()] == [first, second, third]


def test_odd_tabs_are_passed_over(open_store, path, kept):
    odd, plain, _ = kept
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE open_tabs SET active = 'x', conversation = 5 WHERE position = 0")
        connection.execute("INSERT INTO open_tabs VALUES ('../x', 'y', ?, x'00', 'z')", (odd.id,))
    store = open_store()
    assert store.list_open_tabs().ids == (plain.id,)
    assert store.hide(odd.id)


def test_a_chat_of_which_nothing_is_understood_is_not_discarded(open_store, path, kept):
    odd, *_ = kept
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE messages SET role = 'robot' WHERE conversation = ?", (odd.id,))
    store = open_store()
    assert store.load(odd.id).nodes == {}
    store.discard(odd.id)
    assert store.flush()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM messages WHERE role = 'robot'").fetchone() == (3,)
