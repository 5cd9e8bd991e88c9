"""Models are put aside and come back: handles, answers and requests of all models go on."""

import threading
import time
from contextlib import suppress

import pytest

from engine.api.errors import EngineClosedError, EngineError
from engine.api.load_plan import Release
from engine.api.request import FinishReason, Request
from engine.api.stats import ModelState, SequenceState
from engine.core.model_loader import weights_of
from engine.engine import Engine
from engine.footprint.shape import read_footprint
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.tensors import check_tensors
from tests.engine.test_engine import wait_until
from tests.engine.test_engine_lifecycle import in_thread, new_engine, request
from tests.engine.test_moving_budget import ids_of, leave, pause_at
from tests.support.tiny_gguf import make_tiny

WAIT = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [make_tiny(folder / f"{seed}.gguf", "qwen3", quant="Q8_0", seed=seed) for seed in (1, 2, 3)]


@pytest.fixture
def engine():
    with new_engine() as engine:
        yield engine


def states(engine: Engine) -> dict[str, ModelState]:
    return {model.name: model.state for model in engine.stats().models}


def answer(model, tokens=8) -> str:
    return model.submit(request(tokens=tokens)).result(WAIT)[0]


def test_what_a_load_needs_is_what_it_holds(engine, files):
    with open_gguf(files[0]) as file:
        config = read_config(file)
        footprint = read_footprint(file, config, check_tensors(file, config))
        need = weights_of(file, footprint, engine._load_options())
    assert need.weight_bytes == engine.load(files[0]).info.weight_bytes


def test_a_request_wakes_its_model_and_gets_the_same_answer(engine, files):
    model, other = engine.load(files[0]), engine.load(files[1])
    wanted, others = answer(model), answer(other)
    engine.pause_model(model.id)
    engine.pause_model(model.id)
    assert states(engine) == {"1": ModelState.PAUSED, "2": ModelState.LOADED}
    assert engine.stats().kv_bytes_used == 0
    with pytest.raises(EngineError, match="is paused"):
        model.compiling()
    assert answer(other) == others
    pair = model.submit(request()), model.submit(request())
    assert [one.result(WAIT)[0] for one in pair] == [wanted, wanted]
    assert set(states(engine).values()) == {ModelState.LOADED}
    assert model.logits([1, 2, 3]).shape[0] == 3


def test_logits_wake_a_model(engine, files):
    model = engine.load(files[0])
    wanted = model.logits([1, 2, 3])
    engine.pause_model(model.id)
    assert model.logits([1, 2, 3]).equal(wanted)


def test_a_model_that_answers_is_not_put_aside(engine, files):
    model = engine.load(files[0])
    generation = model.submit(request(tokens=None))
    with pytest.raises(EngineError, match="1: it is answering"):
        engine.pause_model(model.id)
    generation.cancel()
    generation.result(WAIT)


def test_a_paused_answer_goes_on_when_its_model_is_back(files):
    with new_engine(kv_budget_bytes=32 << 20) as engine:
        model = engine.load(files[0])
        wanted = ids_of(model.submit(request(tokens=60)))
        generation = model.submit(request(tokens=60))
        taken = pause_at(generation, 20)
        engine.pause_model(model.id)
        assert [(one.state, one.model) for one in engine.stats().sequences] == [(SequenceState.PAUSED, "1")]
        generation.resume()
        assert len(ids_of(generation)) == 60 - taken
        assert ids_of(model.submit(request(tokens=60))) == wanted


def test_a_paused_answer_stays_paused_when_another_request_wakes_the_model(engine, files):
    model = engine.load(files[0])
    generation = model.submit(request(tokens=60))
    pause_at(generation, 20)
    engine.pause_model(model.id)
    answer(model)
    # A snapshot may still show the answer that has just ended.
    wait_until(lambda: [one.user_paused for one in engine.stats().sequences] == [True])
    generation.resume()
    assert generation.stream.wait_for_end(WAIT).reason is FinishReason.LENGTH


def held_wake(engine, monkeypatch) -> tuple[threading.Event, threading.Event]:
    """A model that comes back waits for the second event, having set the first."""
    entered, go = threading.Event(), threading.Event()
    restore = engine._moves._restore

    def slow(aside, progress):
        entered.set()
        assert go.wait(WAIT)
        return restore(aside, progress)

    monkeypatch.setattr(engine._moves, "_restore", slow)
    return entered, go


def test_others_go_on_while_a_model_comes_back_and_what_waits_can_be_ended(engine, files, monkeypatch):
    model, other = engine.load(files[0]), engine.load(files[1])
    engine.pause_model(model.id)
    entered, go = held_wake(engine, monkeypatch)
    first, second, third = (model.submit(request()) for _ in range(3))
    assert entered.wait(WAIT)
    assert answer(other, 20)
    assert engine.stats().sequences[0].note == "waits for its model, which comes back"
    second.cancel()
    assert second.stream.wait_for_end(WAIT).reason is FinishReason.CANCELLED
    third.pause()
    go.set()
    assert first.result(WAIT)[1].completion_tokens == 8
    wait_until(lambda: [one.user_paused for one in engine.stats().sequences] == [True])
    third.resume()
    assert third.result(WAIT)[1].completion_tokens == 8


def test_unloading_or_closing_ends_what_waits_for_a_model(engine, files, monkeypatch):
    model = engine.load(files[0])
    generation = model.submit(request(tokens=60))
    pause_at(generation, 20)
    engine.pause_model(model.id)
    model.unload()
    end = generation.stream.wait_for_end(WAIT)
    assert (end.reason, end.error) == (FinishReason.CANCELLED, "the model was unloaded")
    assert engine.stats().models == ()
    with pytest.raises(EngineClosedError):
        model.submit(request())
    later = engine.load(files[1])
    engine.pause_model(later.id)
    entered, go = held_wake(engine, monkeypatch)
    waits = later.submit(request())
    assert entered.wait(WAIT)
    engine.close()
    assert waits.stream.wait_for_end(WAIT).reason is FinishReason.CANCELLED
    go.set()


def test_a_model_that_cannot_come_back_ends_what_waits_and_can_be_tried_again(engine, files, monkeypatch):
    model = engine.load(files[0])
    wanted = answer(model)
    engine.pause_model(model.id)
    with monkeypatch.context() as patch:
        patch.setattr("engine.device.memory.free_host_bytes", lambda: 1000)
        end = model.submit(request()).result(WAIT)[1]
    assert end.reason is FinishReason.ERROR
    assert "its weights need" in end.error and "what would help" in end.error
    assert states(engine) == {"1": ModelState.PAUSED}
    assert answer(model) == wanted


def test_a_plan_names_the_model_that_was_used_least_and_a_load_follows_it(engine, files, monkeypatch):
    first, second = engine.load(files[0]), engine.load(files[1])
    answer(second)
    answer(first)
    roomy = engine.plan_load(files[2])
    assert (roomy.releases, roomy.refusal) == ((), None) and roomy.seconds > 0
    monkeypatch.setattr("engine.device.memory.free_host_bytes", lambda: roomy.needed_bytes - 1)
    plan = engine.plan_load(files[2])
    (release,) = plan.releases
    assert (release.model_id, release.name, release.how) == (second.id, "2", Release.UNLOAD)
    assert release.nbytes == second.info.weight_bytes
    running = second.submit(request(tokens=None))
    assert engine.plan_load(files[2]).model_ids == (first.id,)
    running.cancel()
    running.result(WAIT)
    third = engine.load(files[2], pause=plan.model_ids)
    assert states(engine) == {"1": ModelState.LOADED, "2": ModelState.PAUSED, "3": ModelState.LOADED}
    assert engine.plan_wake(second.id).model_ids == (first.id,)
    assert engine.plan_wake(third.id).model_ids == ()
    assert answer(second) and answer(third)
    assert states(engine)["1"] is ModelState.PAUSED


def test_idle_models_are_put_aside_by_the_clock(engine, files):
    first, second = engine.load(files[0]), engine.load(files[1])
    answer(first)
    now = time.monotonic()
    assert engine.pause_idle(600, now + 500) == []
    running = second.submit(request(tokens=None))
    assert engine.pause_idle(600, now + 601) == ["1"]
    assert states(engine) == {"1": ModelState.PAUSED, "2": ModelState.LOADED}
    running.cancel()
    running.result(WAIT)
    assert engine.pause_idle(600, time.monotonic() + 601) == ["2"]
    since = [model.idle_since for model in engine.stats().models]
    assert all(clock is not None and now - 60 < clock < time.monotonic() for clock in since)


def test_a_load_that_would_take_an_answers_context_is_refused_and_the_answer_goes_on(files):
    with new_engine(kv_budget_bytes=None) as engine:
        model = engine.load(files[0])
        leave(model, 1600, 160)
        long = model.submit(
            Request(tuple(range(20, 170)), request().sampling, ignore_eog=True, max_tokens=300)
        )
        taken = pause_at(long, 20)
        with pytest.raises(EngineError, match="2: answers that are being written need"):
            engine.load(files[1])
        assert [one.name for one in engine.stats().models] == ["1"]
        long.resume()
        assert len(ids_of(long)) == 300 - taken


def test_nothing_of_this_is_done_on_the_engines_thread(engine, files):
    model = engine.load(files[0])
    said: list[str] = []

    def listen() -> None:
        for work in (model.unload, lambda: engine.pause_model(model.id), lambda: engine.wake_model(model.id)):
            try:
                work()
            except EngineError as error:
                said.append(str(error))
        generation.set_listener(None)

    generation = model.submit(request())
    generation.set_listener(listen)
    generation.result(WAIT)
    wait_until(lambda: len(said) >= 3)
    assert all("listener" in text for text in said)


def test_pauses_wakes_and_requests_race_and_every_request_ends_once(engine, files):
    models = [engine.load(file) for file in files[:2]]
    wanted = [answer(model) for model in models]
    over = threading.Event()

    def shuffle() -> None:
        while not over.is_set():
            for model in models:
                with suppress(EngineError):
                    engine.pause_model(model.id)

    thread = in_thread(shuffle)
    try:
        for _ in range(6):
            made = [model.submit(request()) for model in models for _ in range(2)]
            ends = [one.result(WAIT) for one in made]
            assert [text for text, _ in ends] == [wanted[0]] * 2 + [wanted[1]] * 2
    finally:
        over.set()
        thread.join(WAIT)
