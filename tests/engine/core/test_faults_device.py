"""After a lost device the engine is rebuilt: handles stay, answers go on from their token ids."""

import gc
import logging
import weakref
from pathlib import Path

import pytest

from engine.api.errors import EngineFailedError
from engine.api.request import FinishReason
from engine.api.stats import SequenceState
from engine.scheduler.plan import ModelBatch
from tests.support.fault_bench import SUBJECTS, FaultBench, Tap, read

LOST = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"


@pytest.fixture(scope="module")
def shared(small_model: Path):
    bench = FaultBench(small_model)
    yield bench
    bench.engine.close()


@pytest.fixture
def bench(shared: FaultBench):
    shared.engine._loop._trial._failed_at.clear()
    yield shared
    shared.check_idle()


def dies_at(tap: Tap, at: int, error: type[Exception] = RuntimeError) -> None:
    """From the given pass on, every pass raises."""

    def dead(batch: ModelBatch) -> None:
        if len(tap.passes) >= at:
            raise error(LOST)

    tap.before = dead


@pytest.mark.parametrize("at", [1, 3, 9])
def test_answers_go_on_after_the_device_was_lost(bench: FaultBench, at: int):
    tap = bench.tap()
    dies_at(tap, at)
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))
    assert len(tap.passes) == at
    assert not isinstance(bench.resident.runner, Tap)


def test_paused_and_waiting_sequences_survive_too(bench: FaultBench):
    tap = bench.tap()
    paused, first, *others = bench.together(*map(bench.request, SUBJECTS))
    events = iter(paused.events())
    got = [next(events)]
    paused.pause()
    bench.on_thread(lambda: dies_at(tap, 0))
    bench.check_others([first, *others])
    (state,) = bench.on_thread(lambda: list(bench.engine._loop.scheduler.sequences.values()))
    assert (state.user_paused, state.state, state.block_table) == (True, SequenceState.PAUSED, [])
    paused.resume()
    got += events
    assert [i for event in got[:-1] for i in event.token_ids] == bench.expected[SUBJECTS[0]]


def test_the_focus_survives(bench: FaultBench):
    tap = bench.tap()
    dies_at(tap, 3)
    generation = bench.submit(SUBJECTS[0])
    bench.engine.focus(generation.sequence_id)
    bench.check_others([generation])
    assert bench.on_thread(lambda: bench.engine._loop.scheduler.focused) == generation.sequence_id


def test_the_old_weights_go_before_the_new_ones_come(bench: FaultBench, monkeypatch, caplog):
    # Captured records would keep the error's traceback, and with it the runner.
    caplog.set_level(logging.CRITICAL)
    loop = bench.engine._loop
    real, gone = loop._rebuild_model, []
    old = weakref.ref(bench.resident.runner)

    def noted(origin, progress):
        gc.collect()
        gone.append(old())
        return real(origin, progress)

    monkeypatch.setattr(loop, "_rebuild_model", noted)

    def dead(batch: ModelBatch):
        raise RuntimeError(LOST)

    bench.on_thread(lambda: setattr(loop.models.get(bench.model._key).runner, "run", dead))
    bench.check_others([bench.submit(SUBJECTS[0])])
    assert gone == [None]


def test_several_models_come_back_under_their_keys(bench: FaultBench):
    second = bench.engine.load(bench.path)
    tap = bench.tap()
    dies_at(tap, 4)
    mine = bench.submit(SUBJECTS[0])
    theirs = second.submit(bench.request(SUBJECTS[1]))
    bench.check_others([mine, theirs])
    assert len(bench.engine.stats().models) == 2
    second.unload()


@pytest.fixture
def lone(small_model: Path):
    bench = FaultBench(small_model)
    yield bench
    bench.engine.close()


def give_up(bench: FaultBench, *words: str) -> None:
    """Everything ends with one cause, and the engine says the same to all that comes."""
    generations = bench.together(*map(bench.request, SUBJECTS))
    causes = set()
    for generation in generations:
        _, end = read(generation)
        assert end.reason is FinishReason.ERROR
        causes.add(end.error)
    (cause,) = causes
    for word in ("illegal memory access", *words):
        assert word in cause
    for refused in (
        lambda: bench.submit(SUBJECTS[0]),
        lambda: bench.engine.load(bench.path),
        lambda: bench.model.logits([20]),
    ):
        with pytest.raises(EngineFailedError) as raised:
            refused()
        assert str(raised.value) == cause
    assert bench.engine.stats().sequences == () and bench.engine.stats().models == ()
    bench.model.unload()


def test_a_model_that_cannot_be_loaded_again_ends_everything(lone: FaultBench, monkeypatch):
    dies_at(lone.tap(), 3)

    def missing(origin, progress):
        raise FileNotFoundError(f"{origin.path} does not exist")

    monkeypatch.setattr(lone.engine._loop, "_rebuild_model", missing)
    give_up(lone, "could not go on", "does not exist")


def test_a_process_that_cannot_use_its_device_any_more_says_so(lone: FaultBench, monkeypatch):
    dies_at(lone.tap(), 3)

    def poisoned(device) -> None:
        raise RuntimeError(LOST)

    monkeypatch.setattr("engine.core.recovery.device_recovery.check_device", poisoned)
    give_up(lone, "restart the program", "conversations are kept")


def test_a_device_that_is_lost_again_and_again_is_given_up(lone: FaultBench, monkeypatch):
    loop = lone.engine._loop
    real, rebuilt = loop._rebuild_model, []

    def soon_dead(origin, progress):
        resident = real(origin, progress)
        tap = resident.runner = Tap(resident.runner)
        dies_at(tap, 3)
        rebuilt.append(tap)
        return resident

    monkeypatch.setattr(loop, "_rebuild_model", soon_dead)
    dies_at(lone.tap(), 3)
    give_up(lone, "4 times within 10 minutes", "restart the program")
    assert len(rebuilt) == 3


def test_statistics_say_that_answers_wait_while_a_model_is_loaded_again(lone: FaultBench, monkeypatch):
    loop, seen = lone.engine._loop, []
    real = loop._rebuild_model

    def watched(origin, progress):
        seen.append(lone.engine.stats().sequences)
        return real(origin, progress)

    monkeypatch.setattr(loop, "_rebuild_model", watched)
    dies_at(lone.tap(), 3)
    for generation in lone.together(*map(lone.request, SUBJECTS)):
        read(generation)
    (waiting,) = seen
    assert waiting and all(s.state is SequenceState.PAUSED and s.note for s in waiting)


def test_closing_while_a_model_is_loaded_again_cancels(lone: FaultBench, monkeypatch):
    loop = lone.engine._loop

    def closing(origin, progress):
        lone.engine.close(0.0)
        loop._closing.set()
        progress(0.5, "weights")

    monkeypatch.setattr(loop, "_rebuild_model", closing)
    dies_at(lone.tap(), 3)
    generation = lone.submit(SUBJECTS[0])
    _, end = read(generation)
    assert end.reason in (FinishReason.CANCELLED, FinishReason.ERROR)
    lone.engine.close(5.0)
    assert not loop._thread.is_alive()
