import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.chat.conversation import Conversation, Status
from app.chat.votes import Vote
from app.history.file import opening
from app.history.file.schema import STEPS
from app.history.file.search_index import create_search_index
from app.history.pending import OpenTabs
from app.tools.noted import NotedCall
from tests.app.history.talks import same, talk, tool_talk

ROOT = Path(__file__).parents[3]


def test_a_conversation_comes_back_after_a_restart(open_store):
    conversation = talk()
    conversation.draft = "half a thought 🐦"
    conversation.regenerate(conversation.leaf)
    conversation.finish(conversation.leaf, Status.ERROR, error="no memory")
    store = open_store()
    store.save(conversation)
    store.close()
    same(open_store().load(conversation.id), conversation)


def test_changes_after_loading_are_saved(open_store):
    conversation = talk()
    store = open_store()
    store.save(conversation)
    loaded = store.load(conversation.id)
    loaded.leaf = None
    loaded.add_user("again")
    loaded.title = "two"
    store.save(loaded)
    same(store.load(conversation.id), loaded)


def test_streamed_text_is_written_within_half_a_second(open_store, path):
    store = open_store()
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    store.append(conversation, node.id)
    assert store.flush()
    for number in range(20):
        conversation.append(node.id, f"w{number} ", [number])
        store.append(conversation, node.id)
    time.sleep(0.7)
    with sqlite3.connect(path) as other:
        text, status = other.execute("SELECT text, status FROM messages WHERE id = ?", (node.id,)).fetchone()
    assert text.split()[-1] == "w19"
    assert status == "streaming"


def test_tabs_come_back_in_order_with_the_active_one(open_store):
    store = open_store()
    talks = [talk(title) for title in "abc"]
    for conversation in talks:
        store.save(conversation)
    ids = [talks[2].id, talks[0].id, talks[1].id]
    store.save_tabs(ids, talks[0].id)
    store.close()
    assert open_store().list_open_tabs() == OpenTabs(tuple(ids), talks[0].id)


def test_two_apps_at_once_keep_their_own_tabs(open_store):
    first, second = open_store(), open_store()
    one, two = talk("one"), talk("two")
    first.save(one)
    second.save(two)
    first.save_tabs([one.id], one.id)
    second.save_tabs([two.id], two.id)
    assert first.list_open_tabs().ids == (one.id,)
    assert second.list_open_tabs().ids == (two.id,)
    assert {summary.title for summary in first.recent()} == {"one", "two"}
    first.close()
    assert open_store().list_open_tabs().ids == (one.id,)


def test_two_apps_writing_together_lose_nothing(open_store):
    stores = [open_store(), open_store()]
    talks = [[talk(f"{owner}-{number}") for number in range(30)] for owner in range(2)]

    def write(store, conversations):
        for conversation in conversations:
            store.save(conversation)
            assert store.flush()

    threads = [threading.Thread(target=write, args=pair) for pair in zip(stores, talks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].recent(100)) == 60


def test_search_finds_words_beginnings_and_insides(open_store):
    store = open_store()
    store.save(talk("birds", "what is a tern", "The arctic tern flies far."))
    store.save(talk("fish", "what is a cod", 'A "fish", 世界中の魚 (100%)'))
    assert [hit.title for hit in store.search("arctic")] == ["birds"]
    assert [hit.title for hit in store.search("far tern arc")] == ["birds"]
    assert [hit.title for hit in store.search("rctic")] == ["birds"]
    assert [hit.title for hit in store.search("世界")] == ["fish"]
    assert [hit.title for hit in store.search("の魚")] == ["fish"]
    assert "arctic" in store.search("arctic")[0].snippet
    assert store.search("whale") == []
    assert store.search("  ") == []
    for odd in ['"', '" OR "', "*", "a AND", "NEAR(", "\0", "text:x", "-", "'"]:
        store.search(odd)


def test_search_lists_each_chat_once_the_newest_first_with_its_newest_message(open_store):
    store = open_store()
    old, new, draft = (
        talk("Ärger", "a tern", "one tern"),
        talk("fish", "TERN"),
        Conversation(title="Tern talk"),
    )
    draft.draft = "half a thought"
    old.updated, new.updated, draft.updated = 1.0, 3.0, 2.0
    for conversation in (old, new, draft, Conversation(title="empty tern")):
        store.save(conversation)
    found = store.search("tern")
    assert (
        [chat.title for chat in found] == ["fish", "Tern talk", "Ärger"] == [c.title for c in store.recent()]
    )
    assert [chat.message_id for chat in found] == [next(iter(new.nodes)), None, old.leaf]
    assert [chat.messages for chat in found] == [2, 0, 2]
    assert [chat.title for chat in store.search("ärg")] == ["Ärger"]
    assert [chat.title for chat in store.search("tern", limit=2)] == ["fish", "Tern talk"]


def test_changed_text_replaces_the_old_in_the_index(open_store):
    store = open_store()
    conversation = talk()
    node = conversation.begin_answer("m")
    conversation.append(node.id, "albatross", [1])
    store.save(conversation)
    assert store.flush()
    conversation.append(node.id, " petrel", [2])
    conversation.finish(node.id, Status.STOPPED)
    store.save(conversation)
    assert [hit.message_id for hit in store.search("albatross petrel")] == [node.id]


def test_search_without_fts5(open_store, monkeypatch):
    monkeypatch.setattr(opening, "create_search_index", lambda connection: False)
    store = open_store()
    store.save(talk("birds", "what is a TERN"))
    assert [hit.title for hit in store.search("tern what")] == ["birds"]
    store.hide(store.recent()[0].id)
    assert store.recent() == []


def test_missing_fts5_is_noticed():
    class WithoutFts5:
        def execute(self, sql):
            raise sqlite3.OperationalError("no such module: fts5")

    assert create_search_index(WithoutFts5()) is False


def test_delete_removes_messages_and_index(open_store, path):
    store = open_store()
    conversation = talk()
    store.save(conversation)
    store.hide(conversation.id)
    store.append(conversation, conversation.leaf)
    assert store.flush()
    store.delete_hidden(conversation.id)
    assert store.load(conversation.id) is None
    assert store.search("tern") == []
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_what_another_app_has_in_a_tab_is_not_deleted(open_store):
    """What is written there later would come back without the messages before it."""
    first, second = open_store(), open_store()
    conversation = talk("shared")
    first.save(conversation)
    first.save_tabs([conversation.id], conversation.id)
    assert first.flush()
    assert second.hide(conversation.id) is False
    assert first.hide(talk("another").id) is True
    first.append(conversation, conversation.leaf)
    assert first.flush()
    kept = second.load(conversation.id)
    assert kept is not None
    assert len(kept.nodes) == len(conversation.nodes)
    first.close()
    assert second.hide(conversation.id) is True
    assert second.load(conversation.id) is None


def test_a_damaged_file_is_moved_aside_and_kept(open_store, path):
    path.parent.mkdir(parents=True)
    for number in (1, 2):
        path.write_bytes(b"not a database at all" * 100)
        store = open_store()
        assert "damaged" in store.notices[0]
        assert f"history.db.corrupt-{number}" in store.notices[0]
        store.save(talk())
        assert store.flush()
        store.close()
    assert path.with_name("history.db.corrupt-1").read_bytes().startswith(b"not a database")
    assert len(open_store().recent()) == 1


def test_damage_inside_the_file_is_found_at_opening(open_store, path):
    store = open_store()
    for _ in range(50):
        store.save(talk(answer="x" * 2000))
    store.close()
    raw = bytearray(path.read_bytes())
    raw[8192:40960] = os.urandom(40960 - 8192)
    path.write_bytes(raw)
    store = open_store()
    assert "damaged" in store.notices[0]
    assert path.with_name("history.db.corrupt-1").exists()


def test_damage_while_running_saves_what_is_open_into_a_new_file(open_store, path):
    warnings = []
    store = open_store(on_warning=warnings.append)
    kept = talk("kept")
    store.save(kept)
    assert store.flush()

    def fail(*_):
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    failures = [fail]
    store._ask(lambda database: failures.pop()() if failures else None, None)
    assert store.flush()
    assert "damaged" in warnings[0]
    assert path.with_name("history.db.corrupt-1").exists()
    same(store.load(kept.id), kept)


@pytest.mark.parametrize("kind", ["folder", "newer", "no_parent", "locked"])
def test_a_file_that_cannot_be_used_leaves_the_app_running(open_store, path, kind, monkeypatch):
    monkeypatch.setattr(opening, "_OPEN_SECONDS", 0.01)
    path.parent.mkdir(parents=True)
    blocker = None
    if kind == "folder":
        path.mkdir()
    elif kind == "newer":
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    elif kind == "no_parent":
        path.parent.rmdir()
        path.parent.write_text("a file where a folder should be")
    else:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
    store = open_store()
    assert path.name in store.standing[0]
    conversation = talk()
    store.save(conversation)
    same(store.load(conversation.id), conversation)
    if blocker is not None:
        blocker.close()


def test_a_read_only_file_leaves_the_app_running_in_memory(open_store, path, monkeypatch):
    open_store().close()
    real = sqlite3.connect
    monkeypatch.setattr(
        opening.sqlite3,
        "connect",
        lambda where, **options: real(
            where if where == ":memory:" else f"file:{where}?mode=ro", **options | {"uri": True}
        ),
    )
    store = open_store()
    assert "readonly" in store.standing[0]
    store.save(talk())
    assert len(store.recent()) == 1


def test_a_lock_while_running_delays_the_writing(open_store, path, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.1)
    warnings = []
    store = open_store(on_warning=warnings.append)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    conversation = talk()
    store.save(conversation)
    time.sleep(0.8)
    assert any("cannot be written" in warning for warning in warnings)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert store.flush()
    same(store.load(conversation.id), conversation)
    assert len(warnings) == 2 and "everything is saved" in warnings[1]


def test_unstorable_values_do_not_end_the_saving(open_store):
    warnings = []
    store = open_store(on_warning=warnings.append)
    conversation = talk(question="lone \ud800 surrogate")
    conversation.path()[-1].token_ids.append(-1)
    store.save(conversation)
    store.flush()
    assert "could not be saved" in warnings[0]
    conversation.path()[-1].token_ids.pop()
    store.save(conversation)
    loaded = store.load(conversation.id)
    assert loaded.path()[0].text == "lone ? surrogate"


def test_steps_bring_an_empty_file_to_the_newest_version(open_store, path):
    open_store().close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_of_the_first_version_opens_with_its_chats(open_store, path):
    conversation = talk()
    # Nothing was left out of a context then.
    conversation.path()[0].above = None
    store = open_store()
    store.save(conversation)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.executescript(
            """ALTER TABLE messages DROP COLUMN above; ALTER TABLE messages DROP COLUMN calls;
            ALTER TABLE messages DROP COLUMN votes;
            DROP TABLE drafts; DROP TABLE tags; DROP TABLE takeovers; DROP INDEX conversations_listed;
                DROP INDEX conversations_titles;
            ALTER TABLE conversations DROP COLUMN pinned; ALTER TABLE conversations DROP COLUMN archived;
            ALTER TABLE conversations DROP COLUMN deleted; ALTER TABLE open_tabs DROP COLUMN read_only"""
        )
        connection.execute("PRAGMA user_version = 1")
    store = open_store()
    same(store.load(conversation.id), conversation)
    conversation.draft = "goes on"
    store.save(conversation)
    assert store.flush() and store.standing == store.notices == ()


CHILD = """
import sys, time, json
from pathlib import Path
from app.chat.conversation import Conversation
from app.history.store import HistoryStore

store = HistoryStore(Path(sys.argv[1]))
conversation = Conversation()
conversation.add_user("count")
node = conversation.begin_answer("m")
store.save(conversation)
store.save_tabs([conversation.id], conversation.id)
print(json.dumps({"conversation": conversation.id, "node": node.id}), flush=True)
number = 0
while True:
    conversation.append(node.id, f"{number} {time.monotonic()}\\n", [number])
    store.append(conversation, node.id)
    number += 1
    time.sleep(0.002)
"""


def test_a_kill_loses_at_most_a_second(open_store, path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    ids = json.loads(child.stdout.readline())
    time.sleep(1.6)
    killed_at = time.monotonic()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    store = open_store()
    assert store.standing == ()
    assert store.list_open_tabs() == OpenTabs((ids["conversation"],), ids["conversation"])
    node = store.load(ids["conversation"]).nodes[ids["node"]]
    assert node.status is Status.STOPPED
    lines = node.text.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert node.token_ids == list(range(len(lines)))
    assert killed_at - float(lines[-1].split()[1]) <= 1.0
    assert store.search(f"{len(lines) - 1}"), "the recovered text must be found"


def test_calls_of_tools_come_back_and_one_that_ran_when_the_app_ended_is_stopped(open_store):
    conversation = tool_talk()
    running = conversation.add_call(NotedCall("c2", "read", "{", "files"))
    store = open_store()
    store.save(conversation)
    store.close()
    found = open_store().load(conversation.id)
    assert found.nodes[running.id].status is Status.STOPPED
    conversation.end_call(running.id, Status.STOPPED, "")
    same(found, conversation)
    assert [node.calls for node in found.path()] == [node.calls for node in conversation.path()]
    assert found.tools == ("files",)


def test_a_call_that_ends_is_saved(open_store):
    conversation = tool_talk()
    running = conversation.add_call(NotedCall("c2", "read", {}, "files"))
    store = open_store()
    store.save(conversation)
    store.flush()
    conversation.end_call(running.id, Status.ERROR, "", "no such file")
    store.save(conversation)
    store.close()
    same(open_store().load(conversation.id), conversation)


def test_a_file_from_before_there_were_tools_opens(open_store, path):
    conversation = talk()
    store = open_store()
    store.save(conversation)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE messages DROP COLUMN calls")
        connection.execute("ALTER TABLE messages DROP COLUMN votes")
        connection.execute("PRAGMA user_version = 4")
    store = open_store()
    assert not store.standing and not store.notices
    same(store.load(conversation.id), conversation)
    assert store.load(conversation.id).tools == ()
    later = tool_talk()
    store.save(later)
    store.close()
    same(open_store().load(later.id), later)


def test_votes_are_saved_and_a_file_from_before_there_were_any_opens(open_store, path):
    conversation = talk()
    answer = conversation.last_answer()
    store = open_store()
    store.save(conversation)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE messages DROP COLUMN votes")
        connection.execute("PRAGMA user_version = 5")
    store = open_store()
    assert not store.standing and not store.notices
    same(store.load(conversation.id), conversation)
    answer.votes = {"b" * 32: Vote.BETTER}
    store.save(conversation)
    store.close()
    same(open_store().load(conversation.id), conversation)
