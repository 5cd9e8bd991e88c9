"""Two engines behind the port of one: places, ids, sums, faults and ends."""

import threading
from dataclasses import replace
from unittest import mock

import pytest
import torch

from engine.api.detail import DeviceUse
from engine.api.errors import EngineClosedError, EngineError, EngineFailedError
from engine.api.request import FinishReason
from engine.api.stats import KVDiskStats, ModelState
from engine.core.device_choice import device_names
from engine.engine import Engine
from engine.several import engines as module
from engine.several.engines import Engines, open_engine
from engine.several.merged import merged_stats
from tests.engine.test_engine import wait_until
from tests.engine.test_engine_lifecycle import new_engine, request, resident
from tests.support.fault_bench import Tap
from tests.support.paused import submit_paused
from tests.support.tiny_gguf import make_tiny

WAIT = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [make_tiny(folder / f"{seed}.gguf", "qwen3", quant="Q8_0", seed=seed) for seed in (1, 2)]


@pytest.fixture
def pair():
    with Engines([new_engine(first_id=1, id_step=2), new_engine(first_id=2, id_step=2)]) as engines:
        yield engines


@pytest.fixture
def models(pair, files):
    """One on each, by the memory that is free."""
    loaded = []
    for engine, file in zip(pair._engines, reversed(files), strict=True):
        with roomier(engine):
            loaded.append(pair.load(file))
        assert loaded[-1]._engine is engine
    return tuple(loaded)


def roomier(engine: Engine):
    """Let an engine have more memory free than any other."""
    plan = engine.plan_load
    return mock.patch.object(
        engine, "plan_load", lambda *args, **named: replace(plan(*args, **named), free_bytes=1 << 60)
    )


def answer(model, **more):
    return model.submit(request(**more)).result(WAIT)


def test_every_call_of_an_engine_is_one_of_several():
    own = {name for name in vars(Engine) if not name.startswith("_")}
    assert own - vars(Engines).keys() == set()


def test_both_answer_as_each_alone_and_no_id_is_given_twice(pair, models, files):
    running = [model.submit(request(tokens=12)) for model in (*models, *models)]
    texts = [generation.result(WAIT)[0] for generation in running]
    with new_engine() as alone:
        wanted = [answer(alone.load(file), tokens=12)[0] for file in reversed(files)]
    assert texts == wanted * 2
    assert len({generation.sequence_id for generation in running}) == 4
    assert [model.id for model in models] == [1, 2]


def test_figures_are_sums_and_each_device_says_its_own(pair, models):
    for model in models:
        answer(model)
    paused = [submit_paused(model, request())[0] for model in models]
    wait_until(lambda: [s.user_paused for s in pair.stats().sequences] == [True, True])
    stats = pair.stats()
    one, two = stats.parts
    assert [len(part.sequences) for part in stats.parts] == [1, 1]
    assert stats.kv_bytes_total == one.kv_bytes_total + two.kv_bytes_total
    assert stats.kv_bytes_cached == one.kv_bytes_cached + two.kv_bytes_cached
    assert min(one.kv_bytes_cached, two.kv_bytes_cached, one.ticks, two.ticks) > 0
    assert stats.process_bytes == max(one.process_bytes, two.process_bytes)
    assert [(model.name, model.device) for model in stats.models] == [("2", "cpu"), ("1", "cpu")]
    wait_until(lambda: (detail := pair.detail()) is not None and len(detail.sequences) == 2)
    assert [pool.model for pool in pair.detail().pools] == ["2", "1"]
    ended = [record.ended_at for record in pair.tick_log()]
    assert ended == sorted(ended) and len(ended) == one.ticks + two.ticks
    assert {one.sequence_id for one in stats.sequences} == {one.sequence_id for one in paused}


def test_a_snapshot_that_is_not_new_is_not_made_again(pair):
    wait_until(lambda: pair.stats() is pair.stats())


def test_ids_lead_to_the_engine_they_are_of(pair, models):
    first, second = models
    assert pair.plan_wake(second.id).needed_bytes == 0
    pair.pause_model(second.id)
    states = {model.model_id: model.state for model in pair.stats().models}
    assert states == {first.id: ModelState.LOADED, second.id: ModelState.PAUSED}
    assert pair.plan_wake(second.id).needed_bytes > 0
    pair.wake_model(second.id)
    generations = [submit_paused(model, request())[0] for model in models]
    pair.focus(generations[1].sequence_id)
    wait_until(lambda: [s.focused for s in pair.stats().sequences] == [False, True])
    for generation in generations:
        generation.cancel()
        generation.result(WAIT)
    assert sorted(pair.pause_idle(0.0, now=float("inf"))) == ["1", "2"]


def test_who_makes_room_says_where_a_model_goes(pair, models, files):
    again = pair.load(files[0], pause=[models[1].id])
    assert again._engine is models[1]._engine
    assert [model.state for model in pair.stats().models if model.model_id == 2] == [ModelState.PAUSED]
    again.unload()
    assert len(pair.stats().models) == 2


def test_a_fault_on_one_device_ends_nothing_on_the_other(pair, models):
    first, second = models
    wanted = answer(second)[0]
    tap = Tap(resident(first).runner)
    first._engine._loop.call(lambda: setattr(resident(first), "runner", tap))

    def fail(batch) -> None:
        raise RuntimeError("this pass fails")

    tap.before = fail
    broken, whole = first.submit(request()), second.submit(request())
    assert broken.result(WAIT)[1].reason is FinishReason.ERROR
    assert whole.result(WAIT)[0] == wanted


def test_a_lost_device_leaves_the_others_to_new_models(pair, models, files):
    first, second = models
    lost = pair._engines[0]._loop
    lost.call(lambda: lost._give_up("the device failed"))
    with pytest.raises(EngineFailedError):
        first.submit(request())
    assert answer(second)[1].reason is FinishReason.LENGTH
    with roomier(pair._engines[0]):
        assert pair.load(files[1])._engine is second._engine
    assert pair.pause_idle(1e9) == []
    assert pair.stats().parts[1].models and pair.plan_load(files[0]).device == "cpu"


def test_all_end_together(pair, models):
    running = [submit_paused(model, request())[0] for model in models]
    pair.close()
    assert [one.result(WAIT)[1].reason for one in running] == [FinishReason.CANCELLED] * 2
    for model in models:
        with pytest.raises(EngineClosedError):
            model.submit(request())


def test_one_device_is_served_by_an_engine_alone_and_several_share_the_computer(monkeypatch):
    with open_engine("cpu", threads=1) as engine:
        assert type(engine) is Engine
    monkeypatch.setattr(module, "device_names", lambda device: ("cpu", "cpu"))
    with open_engine("auto", threads=1, host_kv_bytes=8) as both:
        assert [engine._options.host_kv_bytes for engine in both._engines] == [8, 8]
        assert [next(engine._sequence_ids) for engine in both._engines] == [1, 2]
        assert len(both.rules) == 2
    threads = torch.get_num_threads()
    with open_engine("auto") as both:
        assert {engine._options.threads for engine in both._engines} == {threads}


def test_an_engine_that_cannot_start_leaves_no_other(monkeypatch):
    before = threading.active_count()
    monkeypatch.setattr(module, "device_names", lambda device: ("cpu", "cuda:63"))
    with pytest.raises(EngineError, match="device: "):
        open_engine("auto", threads=1)
    wait_until(lambda: threading.active_count() <= before)


def test_what_a_driver_tells_is_told_of_each_gpu(pair, monkeypatch):
    assert pair.device_use() is None
    uses = DeviceUse(10, 80, 300.0), DeviceUse(20, 80, None)
    for engine, use in zip(pair._engines, uses, strict=True):
        monkeypatch.setattr(engine, "device_use", lambda use=use: use)
    both = pair.device_use()
    assert (both.memory_used, both.memory_total, both.watts) == (30, 160, 300.0)
    assert [part.device for part in both.parts] == ["cpu", "cpu"]


def test_a_folder_of_saved_kv_is_counted_once(pair):
    each = pair.stats().parts
    disks = (
        KVDiskStats(100, 1000, 1, 10, 20, (("other file", 1),)),
        KVDiskStats(120, 1000, 2, 30, 5, (("other file", 2),), "full"),
    )
    both = merged_stats([replace(part, kv_disk=disk) for part, disk in zip(each, disks, strict=True)])
    assert both.kv_disk == KVDiskStats(120, 1000, 3, 40, 25, (("other file", 3),), "full")


def test_threads_work_on_their_engines_device(files, monkeypatch):
    entered = []

    class Place:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append((threading.current_thread().name, self.device))

        def __exit__(self, *exc):
            return None

    for name in ("engine.core.command_thread", "engine.core.model_moves", "engine.engine"):
        monkeypatch.setattr(f"{name}.on_device", Place)
    caller, cpu = threading.current_thread().name, torch.device("cpu")
    with new_engine() as engine:
        model = engine.load(files[0])
        engine.pause_model(model.id)
        engine.wake_model(model.id)
        model.unload()
    assert ("engine", cpu) in entered
    assert entered.count((caller, cpu)) == 4, "to load, put aside, bring back and unload it"


class TestNames:
    """What a choice of device stands for."""

    @pytest.fixture(autouse=True)
    def gpus(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        self.use(monkeypatch, (9, 9))

    def use(self, monkeypatch, capabilities) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (capabilities[number], 0))

    def test_auto_is_every_gpu_of_use(self, monkeypatch):
        assert device_names("auto") == ("cuda:0", "cuda:1")
        self.use(monkeypatch, (6, 9))
        assert device_names("auto") == ("cuda:1",)
        self.use(monkeypatch, (6, 6))
        assert device_names("auto") == ("cuda:0", "cuda:1")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert device_names("auto") == ("cpu",)

    def test_one_that_is_named_is_that_one_alone(self, monkeypatch):
        assert device_names("cuda:1") == ("cuda:1",) and device_names("cuda") == ("cuda",)
        with pytest.raises(EngineError, match="cuda:2 is not there, cuda:0 to cuda:1 are"):
            device_names("cuda:2")
        self.use(monkeypatch, (9,))
        with pytest.raises(EngineError, match="cuda:1 is not there, cuda:0 is"):
            device_names("cuda:1")
