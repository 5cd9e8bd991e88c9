"""Closing, unloading, abandoned loads and listeners: nobody waits for ever and no memory stays."""

import gc
import sys
import threading
import weakref

import pytest

from engine.api.errors import EngineClosedError, EngineError, RequestError
from engine.api.request import Action, Finished, FinishReason, Request, SamplingParams, TextDelta
from engine.core.model_loader import ResidentModel
from engine.device.memory import process_bytes
from engine.engine import Engine, Model
from engine.runner.eager_runner import EagerRunner
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "one.gguf", "qwen3", quant="Q8_0", seed=1)


@pytest.fixture
def engine():
    with new_engine() as engine:
        yield engine


@pytest.fixture
def model(engine: Engine, file) -> Model:
    return engine.load(file)


def new_engine(**options) -> Engine:
    defaults = {"weight_dtype": "float32", "threads": 1, "debug": True, "kv_budget_bytes": 32 << 20}
    return Engine("cpu", **defaults | options)


def request(prompt=range(20, 60), tokens: int | None = 8, **more) -> Request:
    return Request(tuple(prompt), GREEDY, max_tokens=tokens, ignore_eog=True, **more)


def resident(model: Model) -> ResidentModel:
    return model._engine._loop.models.get(model._key)


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_submits_that_race_with_close_all_end(file):
    for _ in range(8):
        engine = new_engine()
        model = engine.load(file)
        made, start = [], threading.Barrier(4)

        def client(model=model, made=made, start=start) -> None:
            start.wait()
            for _ in range(50):
                try:
                    made.append(model.submit(request(tokens=3)))
                except EngineClosedError:
                    return

        threads = [in_thread(client) for _ in range(3)]
        start.wait()
        engine.close()
        for thread in threads:
            thread.join(60)
        for generation in made:
            assert generation.result(60)[1].reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
        assert engine.stats().sequences == () and engine.stats().models == ()


def test_a_submit_after_the_last_drain_is_refused(file):
    engine = new_engine()
    model = engine.load(file)
    engine.close()
    engine._loop._closing.clear()
    with pytest.raises(EngineClosedError):
        model.submit(request())
    with pytest.raises(EngineClosedError):
        engine._loop.call(lambda: None)
    engine._loop.control(1, Action.CANCEL)


def test_a_request_in_the_inbox_when_the_engine_closes_ends_as_cancelled(file):
    engine = new_engine()
    model = engine.load(file)
    entered, go = threading.Event(), threading.Event()
    caller = in_thread(lambda: engine._loop.call(lambda: (entered.set(), go.wait(60))))
    assert entered.wait(60)
    generation = model.submit(request())
    closer = in_thread(engine.close)
    assert engine._loop._closing.wait(60)
    go.set()
    assert generation.result(60)[1].reason is FinishReason.CANCELLED
    closer.join(60)
    caller.join(60)


def test_unload_and_cancel_after_close_are_harmless(file):
    engine = new_engine()
    model = engine.load(file)
    generation = model.submit(request(tokens=400))
    engine.close()
    generation.cancel()
    model.unload()
    model.unload()


def test_a_submit_that_loses_against_unload_ends_with_a_sentence(engine: Engine, model: Model):
    entered, go = threading.Event(), threading.Event()
    in_thread(lambda: engine._loop.call(lambda: (entered.set(), go.wait(60))))
    assert entered.wait(60)
    unloading = in_thread(model.unload)
    while engine._loop._inbox.qsize() < 1:
        pass
    late = engine._submit(model._key, model._vocab_size, request(), None)
    go.set()
    unloading.join(60)
    end = late.result(60)[1]
    assert end.reason is FinishReason.ERROR and "was unloaded" in (end.error or "")
    with pytest.raises(EngineClosedError, match="was unloaded"):
        model.logits([20])


def test_a_listener_that_waits_for_the_engine_gets_an_error_and_harms_nobody(model: Model):
    seen: list[Exception] = []

    def listener() -> None:
        try:
            model.logits([20, 21])
        except EngineError as error:
            seen.append(error)

    generation = model.submit(request())
    generation.set_listener(listener)
    assert generation.result(60)[1].reason is FinishReason.LENGTH
    assert model.submit(request()).result(60)[1].reason is FinishReason.LENGTH
    assert all("another thread" in str(error) for error in seen)


def test_a_listener_may_cancel_submit_and_close(file):
    engine = new_engine()
    model = engine.load(file)
    generation = model.submit(request(tokens=400))
    more: list = []

    def listener() -> None:
        if not more:
            more.append(model.submit(request()))
        generation.cancel()
        engine.close()

    generation.set_listener(listener)
    assert generation.result(60)[1].reason is FinishReason.CANCELLED
    assert more[0].result(60)[1].reason is FinishReason.CANCELLED


def test_progress_may_load_another_model_and_closing_abandons_a_load(file):
    engine = new_engine()
    inner: list[Model] = []

    def load_inside(fraction: float, what: str) -> None:
        if not inner:
            inner.append(engine.load(file))

    engine.load(file, progress=load_inside)
    assert len(engine.stats().models) == 2
    with pytest.raises(EngineClosedError):
        engine.load(file, progress=lambda fraction, what: engine.close() if fraction > 0.3 else None)
    assert engine.stats().models == ()


def test_a_load_interrupted_while_waiting_leaves_no_model(engine: Engine, file, monkeypatch):
    real = engine._loop.call

    def interrupted(work):
        real(work)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._loop, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.load(file)
    monkeypatch.undo()
    engine._loop.call(lambda: None)
    assert engine.stats().models == ()


def test_unload_and_close_free_weights_and_kv_though_handles_live(file):
    engine = new_engine()
    kept = []
    for end in (lambda model: model.unload(), lambda model: engine.close()):
        model = engine.load(file)
        kept += [model, model.submit(request()), model.submit(request(tokens=400))]
        kept[-2].result(60)
        parts = resident(model).runner
        gone = [weakref.ref(part) for part in (parts, parts.decoder, parts.kv.groups[0].layers[0].values)]
        del parts
        end(model)
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3


def test_an_abandoned_load_keeps_nothing(engine: Engine, file, monkeypatch):
    made: list[weakref.ref] = []
    real = engine._ops.make_norm

    def noted(weight, eps, *more):
        norm = real(weight, eps, *more)
        made.append(weakref.ref(norm.scaled))
        return norm

    def stop(fraction: float, what: str) -> None:
        if fraction > 0.5:
            raise ValueError("enough")

    monkeypatch.setattr(engine._ops, "make_norm", noted)
    with pytest.raises(ValueError, match="enough"):
        engine.load(file, progress=stop)
    gc.collect()
    assert made and all(ref() is None for ref in made)


@pytest.fixture
def runners(monkeypatch) -> list[EagerRunner]:
    """Every runner that is made."""
    made: list[EagerRunner] = []
    real = EagerRunner.__init__

    def noted(self, *args) -> None:
        made.append(self)
        real(self, *args)

    monkeypatch.setattr(EagerRunner, "__init__", noted)
    return made


def weights_of(runners: list[EagerRunner]) -> list[weakref.ref]:
    """Of the last one made, which is not held any more."""
    runner = runners.pop()
    assert runner.freed.is_set(), "its memory was not given back"
    return [weakref.ref(part) for part in (runner, runner.decoder.weights.head)]


@pytest.mark.parametrize("step", ["kernels", "ready"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_load_given_up_in_its_last_steps_keeps_nothing(engine, file, runners, monkeypatch, step, error):
    monkeypatch.setattr(EagerRunner, "warm_up", lambda self, progress: progress(0.5))

    def stop(_fraction: float, what: str) -> None:
        if what == step:
            raise error

    with pytest.raises(error) as kept:
        engine.load(file, progress=stop)
    parts = weights_of(runners)
    gc.collect()
    assert [part() for part in parts] == [None, None], "what is raised holds what was loaded"
    assert kept and engine.stats().models == ()


@pytest.mark.parametrize("where", ["blocks", "budget"])
def test_a_model_that_cannot_be_added_leaves_nothing_and_ends_nobody(
    engine, model, file, runners, monkeypatch, where
):
    def fail(*_args, **_more):
        raise MemoryError("no room")

    runners.clear()
    running = model.submit(request(tokens=400))
    loop = engine._loop
    owners = len(loop.models.budget._owners)
    with monkeypatch.context() as patch:
        owner, name = {
            "blocks": (ResidentModel, "open_blocks"),
            "budget": (loop.models, "_kv_limit"),
        }[where]
        patch.setattr(owner, name, fail)
        with pytest.raises(MemoryError):
            engine.load(file)
        loop.call(lambda: None)
    parts = weights_of(runners)
    gc.collect()
    assert [part() for part in parts] == [None, None]
    assert len(loop.models.budget._owners) == owners
    assert len(loop.models.by_key) == len(loop.scheduler.models) == len(engine.stats().models) == 1
    assert running.result(60)[1].reason is FinishReason.LENGTH
    assert engine.load(file).submit(request()).result(60)[1].reason is FinishReason.LENGTH


def test_a_model_loaded_while_the_engine_closes_leaves_nothing(file, runners):
    engine = new_engine()

    def close(_fraction: float, what: str) -> None:
        if what == "ready":
            engine.close(60)

    with pytest.raises(EngineClosedError):
        engine.load(file, progress=close)
    parts = weights_of(runners)
    gc.collect()
    assert [part() for part in parts] == [None, None]


def test_a_failing_snapshot_stops_nothing(engine: Engine, model: Model, monkeypatch):
    def broken(*args) -> None:
        raise OSError("no /proc here")

    monkeypatch.setattr(engine._loop._stats, "_build", broken)
    assert model.submit(request()).result(60)[1].reason is FinishReason.LENGTH
    other = engine.load(model.path)
    assert other.submit(request()).result(60)[1].reason is FinishReason.LENGTH


def test_a_failure_while_ending_still_tells_the_consumer(engine: Engine, model: Model, monkeypatch):
    scheduler = engine._loop.scheduler

    def broken(*args) -> None:
        raise RuntimeError("lost count")

    monkeypatch.setattr(scheduler, "finish", broken)
    assert model.submit(request()).result(60)[1].reason is FinishReason.LENGTH
    assert model.submit(request()).result(60)[1].reason in (FinishReason.LENGTH, FinishReason.ERROR)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_ends_everything(engine: Engine, model: Model, monkeypatch):
    def fatal(*args) -> None:
        raise SystemExit

    monkeypatch.setattr(engine._loop, "_tick", fatal)
    assert model.submit(request()).result(60)[1].reason is FinishReason.CANCELLED
    with pytest.raises(EngineClosedError):
        engine._loop.call(lambda: None)


def test_the_same_file_twice_and_again_answers_the_same(engine: Engine, file):
    first, second = engine.load(file), engine.load(file)
    expected = first.submit(request(range(20, 120))).result(60)[0]
    assert second.submit(request(range(20, 120))).result(60)[0] == expected
    hit = first.submit(request(range(20, 120)))
    assert hit.result(60)[0] == expected and hit.finished.cached_tokens == 96
    first.unload()
    again = engine.load(file)
    fresh = again.submit(request(range(20, 120)))
    assert fresh.result(60)[0] == expected and fresh.finished.cached_tokens == 0


def test_limits_at_the_very_end_of_the_context(engine: Engine, file):
    model = engine.load(file, context_length=64)
    assert model.context_length == 64
    end = model.submit(request(range(20, 83), tokens=None)).result(60)[1]
    assert (end.reason, end.completion_tokens) == (FinishReason.LENGTH, 1)
    end = model.submit(request(range(20, 40), tokens=None)).result(60)[1]
    assert (end.reason, end.completion_tokens) == (FinishReason.LENGTH, 44)
    end = model.submit(request(tokens=1)).result(60)[1]
    assert (end.reason, end.completion_tokens, end.tok_s) == (FinishReason.LENGTH, 1, 0.0)
    with pytest.raises(RequestError, match="64 prompt tokens and 1 new"):
        model.submit(request(range(20, 84), tokens=None))
    with pytest.raises(RequestError, match="1 to 64 tokens, not 65"):
        model.logits([20] * 65)


def test_a_stop_string_that_ends_with_the_last_token_counts_and_half_of_one_is_shown(model: Model):
    events = list(model.submit(request(tokens=12)).events())
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    last = text[-2:]
    end = model.submit(request(tokens=12, stop=(last,))).result(60)[1]
    assert end.reason is FinishReason.STOP_STRING
    got, end = model.submit(request(tokens=12, stop=(text[-1] + "\x00never",))).result(60)
    assert (got, end.reason) == (text, FinishReason.LENGTH)


def test_options_that_cannot_be_served_are_refused(engine: Engine, file):
    for bad, name in (
        ({"kv_budget_bytes": 0}, "kv_budget_bytes"),
        ({"kv_budget_bytes": -5}, "kv_budget_bytes"),
        ({"tick_factor": float("nan")}, "tick_factor"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens"),
        ({"threads": -1}, "threads"),
        ({"speculation": "on"}, "speculation: 'on' is not one of auto, off"),
    ):
        with pytest.raises(EngineError, match=name):
            new_engine(**bad)
    for device in ("cpu:x", "cuda:x", "cpu:1"):
        with pytest.raises(EngineError, match="device"):
            Engine(device)
    for length in (0, -3):
        with pytest.raises(EngineError, match="context_length"):
            engine.load(file, context_length=length)


def test_a_budget_below_one_block_is_said_at_load(file):
    with (
        new_engine(kv_budget_bytes=1000) as engine,
        pytest.raises(EngineError, match=r"32 tokens need .* 1000 B"),
    ):
        engine.load(file)


def test_prompts_that_are_no_ids_are_refused(model: Model):
    with pytest.raises(RequestError, match="whole numbers, not float"):
        model.submit(request([20, 21.5]))
    with pytest.raises(RequestError, match="whole numbers, not str"):
        model.submit(request(["20"]))


def test_every_generation_has_one_finished_event(model: Model):
    generations = [model.submit(request(tokens=5 + i)) for i in range(4)]
    generations[1].cancel()
    for generation in generations:
        events = list(generation.events())
        assert [isinstance(event, Finished) for event in events].count(True) == 1
        assert isinstance(events[-1], Finished)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads and relies on glibc's heap")
@pytest.mark.parametrize("how", ["closed", "load given up"])
def test_closing_and_giving_up_return_the_memory_to_the_system(how: str, tmp_path):
    file = make_tiny(tmp_path / "wide.gguf", "qwen3", quant="Q8_0", layers=12, width=512, ffn=2048)
    most: list[int] = []

    def look(_fraction: float, what: str) -> None:
        most.append(process_bytes())
        if what == "ready" and how == "load given up":
            raise ValueError("enough")

    def go() -> None:
        with new_engine() as engine:
            if how == "closed":
                engine.load(file, progress=look)
            else:
                with pytest.raises(ValueError, match="enough"):
                    engine.load(file, progress=look)
                most.append(-process_bytes())

    go()
    before = process_bytes()
    most.clear()
    go()
    needed = max(most) - before
    assert needed > 40 << 20
    after = -most[-1] if how == "load given up" else process_bytes()
    assert after - before < 0.4 * needed


def test_closed_engines_are_gone_some_loads_later(file, monkeypatch):
    """What is kept out of collections for ever would keep their circles."""
    monkeypatch.setattr("engine.device.memory._circles", 0)
    monkeypatch.setattr("engine.device.memory._MOST_CIRCLES", 2)
    engine = new_engine()
    engine.load(file)
    engine.close()
    gone = weakref.ref(engine._loop)
    del engine
    new_engine().close()
    with new_engine() as other:
        # A thread of the closed engine may hold it for a moment longer.
        for _ in range(10):
            model = other.load(file)
            if gone() is None:
                break
            model.unload()
        assert gone() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads and relies on glibc's heap")
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_unloading_returns_the_memory_to_the_system(weight_dtype: str, tmp_path):
    file = make_tiny(tmp_path / "wide.gguf", "qwen3", quant="Q8_0", layers=12, width=512, ffn=2048)
    with new_engine(weight_dtype=weight_dtype) as engine:
        # What the first answer compiles stays.
        model = engine.load(file)
        model.submit(request(range(20, 120))).result(60)
        model.unload()
        before = process_bytes()
        model = engine.load(file)
        model.submit(request(range(20, 120))).result(60)
        weights = model.info.weight_bytes
        assert process_bytes() - before > 0.6 * weights
        model.unload()
        assert process_bytes() - before < 0.4 * weights
