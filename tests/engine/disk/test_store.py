"""The folder: what is found in it, what goes first, and several programs at once."""

import multiprocessing
import os
import time
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from engine.disk.segment import Refused
from engine.disk.sequence_files import SequenceFiles
from engine.disk.store import KVStore
from tests.engine.disk.test_segment import MINE, SIZE, SIZES, pages_of, tokens_of

COUNT = 6


@pytest.fixture
def store(tmp_path) -> KVStore:
    made = KVStore(tmp_path / "kv", 1 << 20)
    made.open()
    return made


def save(store: KVStore, tokens: "array[int]", blocks: range, fingerprint=MINE, mask: int = 1) -> None:
    files = SequenceFiles(store, fingerprint, SIZE, SIZES, tokens)
    for number in blocks:
        files.add(number, mask, pages_of(number, mask))
    files.finish()


def files_of(store: KVStore) -> list[Path]:
    return sorted(store.folder.iterdir())


def test_a_sequence_is_found_as_far_as_its_tokens_go(store):
    tokens = tokens_of(COUNT * SIZE)
    save(store, tokens, range(4))
    save(store, tokens, range(4, COUNT))
    assert len(store.find(tokens, MINE, SIZE).run(0)) == COUNT
    fork = tokens[:]
    fork[2 * SIZE] += 1
    assert len(store.find(fork, MINE, SIZE).run(0)) == 2
    save(store, fork, range(2, COUNT))
    found = store.find(fork, MINE, SIZE)
    assert [place.first for place in found.run(0)] == [0, 0, 2, 2, 2, 2]
    assert not store.find(tokens_of(COUNT * SIZE, 1), MINE, SIZE).run(0)
    assert len(found.run(3)) == COUNT - 3


def test_where_two_files_have_a_block_the_one_with_more_pages_is_used(store):
    tokens = tokens_of(COUNT * SIZE)
    save(store, tokens, range(COUNT))
    save(store, tokens, range(2, 4), mask=3)
    assert [place.mask for place in store.find(tokens, MINE, SIZE).run(0)] == [1, 1, 3, 3, 1, 1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kv_type": "float16"}, "was of KV type float16"),
        ({"model": "other"}, "was of another model file"),
        ({"shapes": "other"}, "was of another model"),
        ({"kernels": "triton"}, "was computed by triton"),
        ({"rope": "other"}, "was of another rope setting"),
        ({"layout": 99}, "was of another version"),
    ],
)
def test_kv_that_came_about_in_another_way_is_refused_and_kept_for_who_made_it(store, change, why):
    tokens = tokens_of(COUNT * SIZE)
    theirs = replace(MINE, **change)
    save(store, tokens, range(COUNT), theirs)
    found = store.find(tokens, MINE, SIZE)
    assert not found.places and found.refusals == {0: why}
    assert len(store.find(tokens, theirs, SIZE).run(0)) == COUNT
    save(store, tokens, range(COUNT))
    assert len(store.find(tokens, MINE, SIZE).run(0)) == COUNT


def test_a_damaged_file_ends_the_run_says_so_and_is_removed(store):
    tokens = tokens_of(COUNT * SIZE)
    save(store, tokens, range(3))
    (sound,) = files_of(store)
    save(store, tokens, range(3, COUNT))
    (damaged,) = set(files_of(store)) - {sound}
    os.truncate(damaged, damaged.stat().st_size - 1)
    found = store.find(tokens, MINE, SIZE)
    assert len(found.run(0)) == 3 and found.refusals == {3: "was damaged"}
    assert files_of(store) == [sound]


def test_a_file_that_was_put_in_the_place_of_another_is_compared_again(store):
    tokens, others = tokens_of(COUNT * SIZE), tokens_of(COUNT * SIZE, 5)
    save(store, tokens, range(COUNT))
    place = store.find(tokens, MINE, SIZE).run(0)[1]
    store.open_at(place, tokens, MINE).close()
    save(store, others, range(COUNT))
    (other,) = set(files_of(store)) - {place.path}
    other.replace(place.path)
    with pytest.raises(Refused, match="replaced"):
        store.open_at(place, tokens, MINE)


def test_what_was_used_longest_ago_goes_first_and_a_chat_from_its_end(store):
    chats = [tokens_of(4 * SIZE, shift) for shift in (1, 2, 3)]
    for tokens in chats:
        save(store, tokens, range(2))
        save(store, tokens, range(2, 4))
        places = store.find(tokens, MINE, SIZE).run(0)
        store.use((place.first, place.path) for place in places)
    places = store.find(chats[0], MINE, SIZE).run(0)
    store.use((place.first, place.path) for place in places)
    one = files_of(store)[0].stat().st_size
    store.limit_bytes = 4 * one
    store.make_room()
    lengths = [len(store.find(tokens, MINE, SIZE).run(0)) for tokens in chats]
    assert sorted(lengths) == [0, 4, 4] and lengths[0] == 4
    store.limit_bytes = 3 * one + one // 2
    store.make_room()
    assert [len(store.find(tokens, MINE, SIZE).run(0)) for tokens in chats] == [4, 0, 2]
    assert store.used_bytes <= store.limit_bytes


def test_a_limit_of_nothing_empties_the_folder_and_makes_none(tmp_path, store):
    save(store, tokens_of(COUNT * SIZE), range(COUNT))
    off = KVStore(store.folder, 0)
    off.open()
    assert not off.enabled and not files_of(store)
    KVStore(tmp_path / "none", 0).open()
    assert not (tmp_path / "none").exists()


def test_what_nobody_finished_is_cleared_away_but_not_what_somebody_writes(store):
    old, new = store.folder / ".writing-old", store.folder / ".writing-new"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 86_400,) * 2)
    store.open()
    assert files_of(store) == [new]
    assert store.folder.stat().st_mode & 0o777 == 0o700


def _busy(folder: Path, shift: int, failed) -> None:
    """Save and look up the same sequences as others do, under a limit that holds a few of them."""
    try:
        store = KVStore(folder, 6000)
        for turn in range(30):
            tokens = tokens_of(COUNT * SIZE, (shift + turn) % 5)
            save(store, tokens, range(COUNT))
            run = store.find(tokens, MINE, SIZE).run(0)
            for number, place in enumerate(run):
                try:
                    with store.open_at(place, tokens, MINE) as segment:
                        page = bytearray(SIZES[0])
                        segment.read(place.index, [memoryview(page)])
                except FileNotFoundError:
                    continue
                assert bytes(page) == bytes(pages_of(number, 1)[0])
    except BaseException as error:
        failed.put(repr(error))
        raise


def test_two_programs_use_one_folder(store):
    context = multiprocessing.get_context("fork")
    failed = context.SimpleQueue()
    programs = [context.Process(target=_busy, args=(store.folder, shift, failed)) for shift in (0, 2)]
    for program in programs:
        program.start()
    for program in programs:
        program.join(60)
    assert failed.empty() and [program.exitcode for program in programs] == [0, 0]
    assert sum(path.stat().st_size for path in files_of(store)) <= 6000 + 1000
    assert not list(store.folder.glob(".writing-*"))
