"""Whose contexts files hold: what is deleted with an owner, and what stays for another."""

import os

import pytest

from engine.disk.saved_kv import SavedKV
from engine.disk.store import KVStore
from tests.engine.disk.test_segment import MINE, SIZE, tokens_of
from tests.engine.disk.test_store import save

TOKENS = tokens_of(6 * SIZE)


@pytest.fixture
def store(tmp_path) -> KVStore:
    made = KVStore(tmp_path / "kv", 1 << 20)
    made.open()
    return made


def blocks_of(store: KVStore) -> int:
    return len(store.find(TOKENS, MINE, SIZE).places)


def own(store: KVStore, owner: str, blocks: int) -> None:
    """As a chat does that has the first blocks."""
    store.saved.add(owner, store.find(TOKENS[: blocks * SIZE], MINE, SIZE).used)


def test_what_an_owner_left_goes_with_it(store):
    save(store, TOKENS, range(6))
    own(store, "a", 6)
    assert store.saved.nbytes == sum(path.stat().st_size for path in store.folder.glob("*.kv")) > 0
    store.saved.forget(["b"])
    assert blocks_of(store) == 6
    store.saved.forget(["a"])
    assert not list(store.folder.iterdir()) and store.saved.nbytes == 0


def test_of_a_shared_file_the_blocks_stay_that_another_has_use_of(store):
    save(store, TOKENS, range(6))
    own(store, "a", 6)
    own(store, "b", 2)
    store.saved.forget(["a"])
    found = store.find(TOKENS, MINE, SIZE)
    assert len(found.places) == 2 and not found.refusals
    store.saved.forget(["b"])
    assert not list(store.folder.iterdir())


def test_an_owner_has_use_of_what_it_had_and_of_what_comes_to_it(store):
    save(store, TOKENS, range(3))
    own(store, "a", 2)
    save(store, TOKENS, range(3, 6))
    own(store, "a", 6)
    own(store, "a", 1)
    own(store, "b", 6)
    store.saved.forget(["b"])
    assert blocks_of(store) == 6


def test_at_a_start_everything_goes_that_no_living_owner_has_use_of(store):
    save(store, TOKENS, range(2))
    own(store, "a", 2)
    save(store, TOKENS, range(2, 4))
    own(store, "gone", 4)
    save(store, TOKENS, range(4, 6))
    store.saved.keep_only({"a", "other"})
    assert sorted(store.find(TOKENS, MINE, SIZE).places) == [0, 1, 4, 5]
    for path in store.folder.glob("*.kv"):
        os.utime(path, (1e9, 1e9))
    store.saved.keep_only({"a", "other"})
    assert sorted(store.find(TOKENS, MINE, SIZE).places) == [0, 1]


def test_a_damaged_record_or_file_is_nobodys(store):
    save(store, TOKENS, range(6))
    own(store, "a", 6)
    own(store, "b", 2)
    (record, other) = store.folder.glob("*.owner")
    record.write_text("[1]")
    other.write_text('{"owner": "a", "files": {"../../x": "y"}}')
    store.saved.forget(["a"])
    own(store, "a", 6)
    own(store, "b", 2)
    (file,) = store.folder.glob("*.kv")
    file.write_bytes(file.read_bytes()[:-5])
    store.saved.forget(["a"])
    assert not list(store.folder.glob("*.kv"))


def test_everything_can_be_deleted_and_a_folder_that_is_not_there_holds_nothing(store, tmp_path):
    save(store, TOKENS, range(6))
    own(store, "a", 6)
    store.saved.clear()
    assert not list(store.folder.iterdir())
    nowhere = SavedKV(tmp_path / "nowhere")
    nowhere.clear()
    nowhere.forget(["a"])
    nowhere.keep_only([])
    assert nowhere.nbytes == 0 and not (tmp_path / "nowhere").exists()
