"""What is kept of one owner's contexts is forgotten on request, and what is computed is saved."""

import threading
from random import Random

import pytest

from engine.api.errors import EngineError, RequestError
from engine.api.request import FinishReason, Request, SamplingParams
from engine.engine import Engine
from tests.support.block_fuzz import BlockFuzzer
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def opened(tmp_path):
    def make(**options):
        chosen = {"weight_dtype": "float32", "threads": 1, "debug": True, "kv_budget_bytes": 32 << 20}
        return Engine("cpu", **chosen | options)

    return make


def asked(model, owner, start, count=100):
    ids = tuple(range(start, start + count))
    return model.submit(Request(ids, GREEDY, max_tokens=2, ignore_eog=True, owner=owner))


def end_of(generation):
    end = generation.stream.wait_for_end(60)
    assert end is not None and end.error is None
    return end


def cached_bytes(engine):
    """Now, and not a few ticks ago."""
    return engine._loop.call(lambda: sum(model.blocks.cached_bytes for model in engine._loop.models))


def test_an_owners_context_is_read_again_and_others_are_kept(opened, tmp_path):
    with opened() as engine:
        model = engine.load(make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1))
        for owner, start in (("foxes", 3), ("terns", 7)):
            end_of(asked(model, owner, start))
        kept = cached_bytes(engine)
        freed = engine.evict_kv("foxes")
        assert 0 < freed < kept and cached_bytes(engine) == kept - freed == engine.stats().kv_bytes_cached
        assert engine.evict_kv("foxes") == 0 == engine.evict_kv("nobody that is known")
        assert end_of(asked(model, "foxes", 3)).cached_tokens == 0
        assert end_of(asked(model, "terns", 7)).cached_tokens > 0


def test_who_answers_or_is_paused_keeps_its_context(opened, tmp_path):
    with opened() as engine:
        model = engine.load(make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1))
        generation = asked(model, "foxes", 3)
        generation.pause()
        with pytest.raises(EngineError, match="stop its answers"):
            engine.evict_kv("foxes")
        generation.cancel()
        end_of(generation)


def test_without_a_disk_nothing_is_saved_and_that_is_said(opened):
    with opened() as engine, pytest.raises(EngineError, match="kv_disk"):
        engine.save_kv("foxes")


def test_the_owner_of_kept_blocks_is_the_last_that_used_them():
    fuzzer = BlockFuzzer(Random(1))
    blocks = fuzzer.managers[0]
    owners = blocks.index.owners
    owners.note([1, 2, 3], "foxes")
    owners.note([3, 4], "terns")
    assert (owners.blocks_of("foxes"), owners.blocks_of("terns")) == ([1, 2], [3, 4])
    owners.note([1], "")
    assert owners.blocks_of("foxes") == [2] and len(owners.tobytes(10)) == 40


def test_a_paused_answer_is_saved_before_it_ends(opened, tmp_path):
    path = make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1, context_length=1024)
    with opened(kv_disk_folder=tmp_path / "kv") as engine:
        model = engine.load(path)
        ids = tuple(number % 200 + 3 for number in range(600))
        generation = model.submit(Request(ids, GREEDY, max_tokens=400, ignore_eog=True, owner="foxes"))
        assert next(generation.events()).token_ids
        generation.pause()
        assert engine.save_kv("terns") == 0 and engine.save_kv("foxes") >= 600
        disk, written = engine._loop.disk, threading.Event()
        copied = engine._loop.call(lambda: disk.last_save(model.id))
        assert copied is None or copied.wait(60)
        disk._saves.writer.put(written.set)
        assert written.wait(60) and generation.finished is None
        assert disk.stats().tokens_saved >= 512
        generation.cancel()


def test_a_chosen_context_is_kept_to_and_can_be_taken_back(opened, tmp_path):
    with opened() as engine:
        model = engine.load(make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1))
        longest = model.longest_context
        model.limit_context(64)
        assert (model.context_length, model.max_tokens) == (64, 64)
        assert engine.stats().models[0].context_length == 64
        with pytest.raises(RequestError, match="context length is 64"):
            asked(model, "foxes", 3)
        engine.pause_model(model.id)
        with pytest.raises(EngineError, match="paused"):
            model.limit_context(32)
        engine.wake_model(model.id)
        assert model.max_tokens == 64
        model.limit_context(longest + 1)
        assert model.context_length == longest
        end_of(asked(model, "foxes", 3))


def test_an_answer_that_is_longer_than_the_new_context_ends(opened, tmp_path):
    with opened() as engine:
        model = engine.load(make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1))
        generation = asked(model, "foxes", 3)
        generation.pause()
        model.limit_context(64)
        assert generation.stream.wait_for_end(60).reason in (FinishReason.LENGTH, FinishReason.STOP)
