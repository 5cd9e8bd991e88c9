"""A model is loaded beside running chats and takes of their memory: no answer ends of it, limits follow."""

import threading

import pytest

from engine.api.generation import Generation
from engine.api.request import FinishReason, Request, TextDelta
from engine.device.fit_advice import LOAD_MARGIN
from engine.engine import Model
from tests.engine.test_engine import wait_until
from tests.engine.test_engine_lifecycle import GREEDY, new_engine
from tests.support.tiny_gguf import make_tiny

WAIT = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [make_tiny(folder / f"{seed}.gguf", "qwen3", quant="Q8_0", seed=seed) for seed in (1, 2)]


def request(prompt: int, tokens: int | None) -> Request:
    return Request(tuple(range(20, 20 + prompt)), GREEDY, max_tokens=tokens, ignore_eog=True)


def leave(model: Model, *of_each: int) -> None:
    """Leave KV so many tokens of a model beside one model, beside two, and so on."""
    loop, per_token = model._engine._loop, model.info.kv_bytes_per_token
    loop.models._kv_limit = lambda held: of_each[len(loop.models.by_key) - 1] * per_token


def ids_of(generation: Generation) -> list[int]:
    """What was not taken of an answer that runs to its limit."""
    end = generation.stream.wait_for_end(WAIT)
    assert end is not None and (end.reason, end.error) == (FinishReason.LENGTH, None)
    return [i for event in generation.poll() if isinstance(event, TextDelta) for i in event.token_ids]


def pause_at(generation: Generation, tokens: int, *others: Generation) -> int:
    """Pause an answer, and others, when it has so many tokens; returns how many were taken of it."""
    taken: list[int] = []
    paused = threading.Event()

    def listen() -> None:
        # On the engine's thread: no test is too slow for it.
        for event in generation.poll():
            assert isinstance(event, TextDelta), event
            taken.extend(event.token_ids)
        if len(taken) >= tokens and not paused.is_set():
            generation.set_listener(None)
            for one in (generation, *others):
                one.pause()
            paused.set()

    generation.set_listener(listen)
    assert paused.wait(WAIT)
    return len(taken)


@pytest.mark.parametrize("offload", ["never", "always"])
def test_a_second_model_leaves_less_memory(files, offload):
    with new_engine(kv_offload=offload, host_kv_bytes=32 << 20, kv_budget_bytes=None) as engine:
        model = engine.load(files[0])
        wanted = ids_of(model.submit(request(40, 60)))
        leave(model, 1600, 192)
        long, short = model.submit(request(150, 40)), model.submit(request(40, 60))
        taken = pause_at(long, 20)
        other = engine.load(files[1])
        assert model.max_tokens == 192
        assert ids_of(short) == wanted
        long.resume()
        assert len(ids_of(long)) == 40 - taken
        assert len(ids_of(other.submit(request(40, 30)))) == 30
        other.unload()
        assert model.max_tokens > 192
        assert len(ids_of(model.submit(request(40, 130)))) == 130
        # Statistics are taken behind the tick whose ends were told.
        wait_until(lambda: engine.stats().kv_bytes_used == 0)


def test_limits_fall_and_rise_while_answers_are_written(files):
    with new_engine(kv_budget_bytes=None) as engine:
        model = engine.load(files[0])
        pair = model.submit(request(40, 200)), model.submit(request(40, 200))
        taken = pause_at(pair[0], 3, pair[1])

        def move() -> list[int]:
            limits = []
            for tokens in (400, 128, 260):
                leave(model, tokens)
                engine._loop.update_budget()
                limits.append(model.max_tokens)
            return limits

        # Never less than what the answers at hand may still need.
        assert engine._loop.call(move) == [384, 256, 256]
        for one in pair:
            one.resume()
        assert [len(ids_of(one)) for one in pair] == [200 - taken, 200]


def test_a_processor_leaves_kv_no_more_than_is_free(files, monkeypatch):
    free = 10 << 30
    monkeypatch.setattr("engine.device.memory.free_host_bytes", lambda: free)
    with new_engine(kv_budget_bytes=None) as engine:
        loop = engine._loop
        model = engine.load(files[0])
        assert engine.stats().kv_bytes_total == 5 << 30, "half of what was free at the start"
        ids_of(model.submit(request(40, 8)))
        free = 2 << 30
        loop.call(loop.update_budget)
        taken = loop.call(lambda: loop.models.budget.used_bytes)
        assert taken and loop.models.budget.total_bytes == free - LOAD_MARGIN // 2 + taken
        free = 10 << 30
        model.unload()
        assert loop.models.budget.total_bytes == 5 << 30
