"""One chat in two windows: neither takes back what the other wrote, and a deleted one is whole or gone."""

import errno
import fcntl
import json
import sqlite3

import pytest

from app.history.file import opening
from app.history.store import HistoryStore
from tests.app.history.talks import same, talk


@pytest.fixture
def both(open_store):
    """Two windows that have read the same chat."""
    first, second = open_store(), open_store()
    shared = talk("shared")
    first.save(shared)
    assert first.flush()
    return first, second, shared, second.load(shared.id)


def read_by_a_third(path, conversation_id):
    store = HistoryStore(path)
    try:
        return store.load(conversation_id)
    finally:
        store.close()


def test_a_stale_copy_takes_back_nothing(both, path):
    first, second, one, other = both
    one.title, one.draft, one.system_prompt = "renamed", "half a thought", "Be short."
    one.add_user("and a gull?")
    first.save(one)
    assert first.flush()
    other.model_path = "/another.gguf"
    second.save(other)
    assert second.flush()
    found = read_by_a_third(path, one.id)
    assert (found.title, found.draft, found.system_prompt) == ("renamed", "half a thought", "Be short.")
    assert found.leaf == one.leaf
    assert found.model_path == "/another.gguf"


def test_branches_of_both_windows_are_kept(both, path):
    first, second, one, other = both
    mine, theirs = one.add_user("mine"), other.add_user("theirs")
    for store, conversation in ((first, one), (second, other)):
        store.save(conversation)
        assert store.flush()
    found = read_by_a_third(path, one.id)
    assert {mine.id, theirs.id} <= set(found.nodes)
    assert found.leaf == theirs.id


def test_what_is_typed_in_both_windows_is_kept(both, path, open_store):
    first, second, one, other = both
    for text in ("hel", "hello"):
        one.draft = text
        first.save(one)
        assert first.flush()
        other.draft = text.replace("hello", "world")
        second.save(other)
        assert second.flush()
    assert second.load(other.id).draft == "hello\n\nworld", "what was written in this window comes with it"
    assert read_by_a_third(path, one.id).draft == "hello", "this one is still written in another window"
    first.close()
    second.close()
    store = open_store()
    found = store.load(one.id)
    assert found.draft == "hello\n\nworld"
    store.save(found)
    store.close()
    store = open_store()
    assert store.load(one.id).draft == "hello\n\nworld"


def test_a_draft_that_was_sent_does_not_come_back(both, path):
    first, second, one, other = both
    one.draft, other.draft = "hello", "world"
    for store, conversation in ((first, one), (second, other)):
        store.save(conversation)
        assert store.flush()
    other.draft = ""
    other.add_user("world")
    second.save(other)
    assert second.flush()
    second.close()
    assert read_by_a_third(path, one.id).draft == "hello"


def test_settings_of_a_later_version_are_kept(both, path):
    first, _, one, _ = both
    with sqlite3.connect(path) as connection:
        ((text,),) = connection.execute("SELECT sampling FROM conversations")
        later = json.loads(text) | {"mirostat": 2}
        connection.execute("UPDATE conversations SET sampling = ?", (json.dumps(later),))
    one.max_tokens = 5
    first.save(one)
    assert first.flush()
    with sqlite3.connect(path) as connection:
        ((text,),) = connection.execute("SELECT sampling FROM conversations")
    assert json.loads(text)["mirostat"] == 2 and json.loads(text)["max_tokens"] == 5


def test_of_a_chat_kept_before_what_is_not_usual_counts_as_chosen(both, path):
    first, _, one, _ = both
    with sqlite3.connect(path) as connection:
        ((text,),) = connection.execute("SELECT sampling FROM conversations")
        before = {name: value for name, value in json.loads(text).items() if name != "chosen"}
        connection.execute("UPDATE conversations SET sampling = ?", (json.dumps(before),))
    loaded = first.load(one.id)
    assert loaded.sampling == one.sampling and loaded.chosen == {"temperature", "seed"}


def count(path, table):
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.parametrize("for_good", [True, False])
def test_a_chat_deleted_elsewhere_stays_deleted_while_nothing_is_written_in_it(both, path, for_good):
    first, second, one, other = both
    assert first.hide(one.id)
    if for_good:
        first.delete_hidden(one.id)
    second.save(other)
    second.append(other, other.leaf)
    assert second.flush()
    if for_good:
        assert (count(path, "conversations"), count(path, "messages")) == (0, 0)
    assert second.recent() == [] and first.load(one.id) is None


@pytest.mark.parametrize("for_good", [True, False])
@pytest.mark.parametrize("what", ["message", "growing", "draft"])
def test_a_chat_deleted_elsewhere_that_goes_on_comes_back_whole(both, path, what, for_good, open_store):
    said = []
    first, second, one, other = both
    second.on_warning = said.append
    answer = other.begin_answer("m")
    second.save(other)
    assert second.flush()
    assert first.hide(one.id)
    if for_good:
        first.delete_hidden(one.id)
    if what == "message":
        other.add_user("and then?")
        second.save(other)
    elif what == "growing":
        other.append(answer.id, "more", [1])
        second.append(other, answer.id)
    else:
        other.draft = "and"
        second.save(other)
    assert second.flush()
    other.finish(answer.id)
    second.save(other)
    assert second.flush()
    same(first.load(one.id), other)
    assert [line for line in said if "deleted in another window" in line and "shared" in line] == said
    found = first.load(one.id)
    found.title = "again"
    first.save(found)
    assert first.flush()
    assert second.recent()[0].title == "again", "a window that deleted it can save it again"


def test_an_empty_chat_is_discarded_and_one_that_holds_something_is_not(open_store, path):
    store = open_store()
    kept = talk()
    store.save(kept)
    assert store.flush()
    store.discard(kept.id)
    assert store.flush()
    assert count(path, "messages") == 2


def test_a_file_system_without_locks_saves_and_says_what_is_missing(open_store, path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    store = open_store()
    assert "no file locks" in store.notices[0]
    assert not store.unsaved
    conversation = talk()
    store.save(conversation)
    store.save_tabs([conversation.id], conversation.id)
    store.close()
    store = open_store()
    assert store.list_open_tabs().ids == (conversation.id,)
    assert store.hide(conversation.id)


def test_a_file_system_without_any_locks_saves_too(open_store, path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    class WithoutLocks(sqlite3.Connection):
        def execute(self, *args):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = 3850
            raise error

    def connect(where, **options):
        lockless = "nolock=1" in str(where)
        return real(where, **options | ({} if lockless else {"factory": WithoutLocks}))

    real = sqlite3.connect
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(opening.sqlite3, "connect", connect)
    store = open_store()
    assert "no file locks" in store.notices[0] and not store.unsaved
    conversation = talk()
    store.save(conversation)
    store.close()
    same(open_store().load(conversation.id), conversation)
