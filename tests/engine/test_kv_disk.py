"""A chat goes on after a restart with the KV that was saved, and with the same ids."""

import gc
import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest

from engine.api.generation import Generation
from engine.api.request import Finished, FinishReason, Priority, Request, SamplingParams
from engine.api.stats import KVDiskStats
from engine.core.saved_kv.kv_restores import KVRestores
from engine.disk.segment import Segment
from engine.engine import Engine, Model
from tests.support.small_model import KV_BYTES

GREEDY = SamplingParams(temperature=0.0)
SENTENCES = "The river runs past the old mill and the town. People come in spring to see the water rise. "
PROMPT, NEW, BLOCK = 700, 40, 32


def opened(folder: Path, **options) -> Engine:
    chosen = {"weight_dtype": "float32", "kv_dtype": "float32", "debug": True} | options
    return Engine("cpu", kv_disk_folder=folder, **chosen)


def prompt_of(model: Model, count: int = PROMPT, start: int = 0) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(SENTENCES * 60)[start : start + count])


def submit(model: Model, prompt: tuple[int, ...], new: int = NEW) -> Generation:
    return model.submit(Request(prompt, GREEDY, max_tokens=new, ignore_eog=True))


def answer(generation: Generation) -> tuple[tuple[int, ...], Finished]:
    end = generation.stream.wait_for_end(120)
    assert end is not None and end.error is None
    return tuple(i for event in generation.poll() for i in getattr(event, "token_ids", ())), end


def disk(engine: Engine) -> KVDiskStats:
    """The statistics now, and not those of a few ticks ago."""
    stats = engine._loop.disk.stats()
    assert stats is not None
    return stats


def wait_for_saves(engine: Engine, model: Model) -> None:
    """Until everything that has ended is in files: copied first, then written."""
    disk, written = engine._loop.disk, threading.Event()
    saved = engine._loop.call(lambda: disk.last_save(model._key))
    assert saved is None or saved.wait(60)
    engine._loop.call(lambda: disk._saves.writer.put(written.set))
    assert written.wait(60)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "kv"


@pytest.fixture(scope="module")
def first_turn(tmp_path_factory, small_model) -> Path:
    """What an engine leaves in its folder after the first turn."""
    folder = tmp_path_factory.mktemp("first") / "kv"
    begin(folder, small_model)
    return folder


@pytest.fixture
def saved(folder, first_turn) -> Path:
    """A folder with the first turn."""
    return shutil.copytree(first_turn, folder)


@pytest.fixture(scope="module")
def chat(small_model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A first turn with its answer, and the ids of the second, of an engine that computes it all."""
    with Engine("cpu", weight_dtype="float32", kv_dtype="float32") as engine:
        model = engine.load(small_model)
        first = prompt_of(model)
        first += answer(submit(model, first))[0]
        return first, answer(submit(model, first))[0]


def begin(folder: Path, small_model: Path, **options) -> None:
    """The first turn, in an engine that is closed then."""
    with opened(folder, **options) as engine:
        model = engine.load(small_model)
        answer(submit(model, prompt_of(model)))


def go_on(
    folder: Path, path: Path, first: tuple[int, ...], **options
) -> tuple[tuple[int, ...], Finished, KVDiskStats]:
    """The second turn, in an engine of its own."""
    with opened(folder, **options) as engine:
        ids, end = answer(submit(engine.load(path), first))
        return ids, end, disk(engine)


def test_after_a_restart_nothing_is_read_again_but_the_last_block(saved, small_model, chat):
    first, expected = chat
    size = sum(path.stat().st_size for path in saved.iterdir())
    ids, end, stats = go_on(saved, small_model, first)
    assert ids == expected
    assert end.cached_tokens == stats.tokens_restored == (len(first) - 1) // BLOCK * BLOCK
    assert (stats.restores, stats.refusals, stats.note) == (1, (), "")
    assert stats.bytes_used == size > PROMPT * KV_BYTES


def test_only_what_files_lack_is_written(folder, small_model, chat):
    begin(folder, small_model)
    begin(folder, small_model)
    before = sorted(folder.iterdir())
    _, _, stats = go_on(folder, small_model, chat[0])
    assert stats.tokens_saved == 0 and set(before) <= set(folder.iterdir())
    with opened(folder) as engine:
        model = engine.load(small_model)
        answer(submit(model, prompt_of(model, 400) + prompt_of(model, 300, 500)))
        wait_for_saves(engine, model)
        assert 0 < disk(engine).tokens_saved <= 700 + NEW - 400 // BLOCK * BLOCK


def test_short_chats_are_not_written(folder, small_model):
    with opened(folder) as engine:
        model = engine.load(small_model)
        answer(submit(model, prompt_of(model, 400)))
        assert engine._loop.call(lambda: engine._loop.disk.last_save(model._key)) is None
    assert not list(folder.glob("*.kv"))


def test_kv_of_another_type_is_read_again_and_the_statistics_say_why(folder, small_model, chat):
    begin(folder, small_model, kv_dtype="bfloat16")
    ids, end, stats = go_on(folder, small_model, chat[0])
    assert (ids, end.cached_tokens) == (chat[1], 0)
    assert stats.note == "KV on disk was of KV type bfloat16" and stats.refusals == ((stats.note, 1),)


def test_kv_of_a_file_that_has_changed_since_is_read_again(folder, small_model, chat, tmp_path):
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(small_model.read_bytes())
    begin(folder, changed)
    os.utime(changed, (1e9, 1e9))
    ids, end, stats = go_on(folder, changed, chat[0])
    assert (ids, end.cached_tokens) == (chat[1], 0)
    assert stats.note == "KV on disk was of another model file"


@pytest.mark.parametrize("at", [0.1, 0.6, 0.999])
def test_damaged_kv_is_read_again_from_the_damage_on(saved, small_model, chat, at):
    (path,) = saved.glob("*.kv")
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 4
    path.write_bytes(content)
    ids, end, stats = go_on(saved, small_model, chat[0])
    assert ids == chat[1]
    assert end.cached_tokens == stats.tokens_restored < (PROMPT if at < 0.9 else 1)
    assert "KV on disk was damaged" in dict(stats.refusals)
    assert not path.exists() or Segment(path).head.first == 0


def test_kv_that_is_larger_than_the_limit_is_not_written(folder, small_model):
    with opened(folder, kv_disk_bytes=100_000) as engine:
        model = engine.load(small_model)
        answer(submit(model, prompt_of(model)))
        wait_for_saves(engine, model)
        assert disk(engine).note.startswith("KV is not saved: the chat is larger")
    assert not list(folder.glob("*.kv"))


def test_the_folder_keeps_to_its_limit(folder, small_model):
    limit = 1_500_000
    with opened(folder, kv_disk_bytes=limit) as engine:
        model = engine.load(small_model)
        for start in (0, 3, 6):
            answer(submit(model, prompt_of(model, start=start)))
            wait_for_saves(engine, model)
        assert disk(engine).tokens_saved > 3 * 640
        assert disk(engine).bytes_used <= limit
    assert 0 < sum(path.stat().st_size for path in folder.iterdir()) <= limit


def test_where_nothing_can_be_written_the_answer_comes_and_the_statistics_say_why(folder, small_model):
    folder.write_text("no folder")
    with opened(folder) as engine:
        model = engine.load(small_model)
        ids, _ = answer(submit(model, prompt_of(model)))
        wait_for_saves(engine, model)
        assert len(ids) == NEW and "KV is not saved" in disk(engine).note


def test_a_folder_that_was_cleared_away_meanwhile_is_made_again(saved, small_model, chat):
    with opened(saved) as engine:
        model = engine.load(small_model)
        shutil.rmtree(saved)
        ids, end = answer(submit(model, chat[0]))
        assert (ids, end.cached_tokens) == (chat[1], 0)
        wait_for_saves(engine, model)
        assert disk(engine).note == "" and list(saved.glob("*.kv"))


def test_without_a_limit_to_fill_nothing_is_kept(saved, small_model, chat):
    with opened(saved, kv_disk_bytes=0) as engine:
        _, end = answer(submit(engine.load(small_model), chat[0]))
        assert end.cached_tokens == 0 and engine.stats().kv_disk is None
    assert not list(saved.iterdir())


def test_two_engines_use_one_folder(saved, small_model, chat):
    with opened(saved) as one, opened(saved) as other:
        running = [submit(engine.load(small_model), chat[0]) for engine in (one, other)]
        for generation in running:
            ids, end = answer(generation)
            assert ids == chat[1] and end.cached_tokens > PROMPT - BLOCK


@pytest.fixture
def gate(monkeypatch) -> threading.Event:
    """Until it is set no block is read from a file."""
    opened = threading.Event()
    original = KVRestores._read_one

    def read_one(self, *args) -> None:
        assert opened.wait(60)
        original(self, *args)

    monkeypatch.setattr(KVRestores, "_read_one", read_one)
    yield opened
    opened.set()


def held(engine: Engine) -> list[int]:
    return engine._loop.call(lambda: list(engine._loop.disk._restores._jobs))


def test_others_go_on_while_kv_is_read_and_the_statistics_say_who_waits(saved, small_model, chat, gate):
    with opened(saved) as engine:
        model = engine.load(small_model)
        waiting = submit(model, chat[0])
        answer(submit(model, prompt_of(model, 50)))
        engine._loop.call(engine._loop._take_snapshot)
        (one,) = engine.stats().sequences
        assert (one.sequence_id, one.note) == (waiting.sequence_id, "its context is read from the disk")
        gate.set()
        assert answer(waiting)[0] == chat[1]


def test_what_is_asked_of_a_request_that_waits_is_done_when_it_is_queued(saved, small_model, chat, gate):
    with opened(saved) as engine:
        model = engine.load(small_model)
        waiting = submit(model, chat[0])
        waiting.pause()
        waiting.set_priority(Priority.HIGH)
        assert held(engine) == [waiting.sequence_id]
        gate.set()
        sequences = engine._loop.scheduler.sequences
        while not engine._loop.call(lambda: [s.user_paused for s in sequences.values()]):
            pass
        assert [(s.user_paused, s.priority) for s in sequences.values()] == [(True, Priority.HIGH)]
        waiting.resume()
        assert answer(waiting)[0] == chat[1]


@pytest.mark.parametrize("way", ["cancel", "unload", "close"])
def test_a_request_ends_while_it_waits(saved, small_model, chat, gate, way):
    with opened(saved) as engine:
        model = engine.load(small_model)
        waiting = submit(model, chat[0])
        assert held(engine) == [waiting.sequence_id]
        {"cancel": waiting.cancel, "unload": model.unload, "close": engine.close}[way]()
        end = waiting.stream.wait_for_end(60)
        assert end is not None and end.reason is FinishReason.CANCELLED
        if way == "cancel":
            gate.set()
            assert answer(submit(model, chat[0]))[0] == chat[1]


def test_a_request_that_waits_goes_on_after_the_device_has_failed(saved, small_model, chat, gate):
    with opened(saved) as engine:
        model = engine.load(small_model)
        waiting = submit(model, chat[0])
        assert held(engine) == [waiting.sequence_id]
        engine._loop.call(lambda: engine._loop._rebuild("a trial"))
        assert answer(waiting)[0] == chat[1]
        assert not held(engine)
        wait_for_saves(engine, model)
        gate.set()
        assert answer(submit(model, chat[0]))[0] == chat[1]


def test_an_answer_that_is_cut_off_by_the_end_is_saved(folder, small_model):
    with opened(folder) as engine:
        model = engine.load(small_model)
        running = submit(model, prompt_of(model), new=1000)
        assert running.stream.wait() is not None
    assert list(folder.glob("*.kv"))


def test_a_model_that_is_unloaded_is_not_held_by_what_was_saved(saved, small_model, chat):
    with opened(saved) as engine:
        model = engine.load(small_model)
        answer(submit(model, chat[0]))
        runner = weakref.ref(engine._loop.call(lambda: engine._loop.models.get(model._key).runner))
        model.unload()
        until = time.monotonic() + 60
        while runner() is not None and time.monotonic() < until:
            gc.collect()
        assert runner() is None


def test_what_memory_has_no_room_for_is_left_on_the_disk(saved, small_model, chat):
    with opened(saved, kv_budget_bytes=1024 * (len(chat[0]) + NEW + 2 * BLOCK)) as engine:
        model = engine.load(small_model)
        other = submit(model, prompt_of(model, 300, 900), new=200)
        assert other.stream.wait() is not None
        assert answer(submit(model, chat[0]))[0] == chat[1]
        answer(other)
