"""Consumers, texts and cancellations that go wrong cost nobody but themselves."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from engine.api.generation import Generation
from engine.api.request import FinishReason, TextDelta
from engine.api.stats import SequenceState
from engine.scheduler.plan import ModelBatch
from tests.support.fault_bench import SUBJECTS, VICTIM, FaultBench, Tap, labels, read
from tests.support.small_model import KV_BYTES


@pytest.fixture(scope="module")
def shared(small_model: Path):
    bench = FaultBench(small_model, kv_budget_bytes=597 * KV_BYTES)
    yield bench
    bench.engine.close()


@pytest.fixture
def bench(shared: FaultBench):
    shared.forget_prefixes()
    yield shared
    shared.tap()
    shared.check_idle()


class BrokenDetokenizer:
    """Raises at the given token."""

    def __init__(self, real, at: int) -> None:
        self.real, self.left = real, at

    def push(self, token_id: int) -> str:
        self.left -= 1
        if not self.left:
            raise UnicodeError("half a character")
        return self.real.push(token_id)

    def flush(self) -> str:
        raise UnicodeError("the other half")


@pytest.mark.parametrize("at", [1, 2, 9])
def test_a_detokenizer_that_raises_ends_its_answer(bench: FaultBench, at: int):
    tap = bench.tap()

    def damage(batch: ModelBatch) -> None:
        for answer in bench.engine._loop._outputs.values():
            if answer.sequence.request.label == VICTIM:
                answer._detokenizer = BrokenDetokenizer(answer._detokenizer, at)
                tap.before = lambda batch: None

    tap.before = damage
    others, victim = bench.everybody()
    end = list(victim.events())[-1]
    assert end.reason is FinishReason.ERROR
    assert "decoding the text failed" in (end.error or "") and "half a character" in (end.error or "")
    bench.check_others(others)


def test_a_tokenizer_that_raises_at_the_start_ends_its_answer(bench: FaultBench, monkeypatch):
    class Broken:
        def __init__(self, *args) -> None:
            raise ValueError("no such vocabulary")

    others = bench.together(*map(bench.request, SUBJECTS))
    bench.on_thread(lambda: monkeypatch.setattr("engine.core.output_processor.Detokenizer", Broken))
    _, end = read(bench.submit(VICTIM))
    assert end.reason is FinishReason.ERROR and "no such vocabulary" in (end.error or "")
    bench.on_thread(monkeypatch.undo)
    bench.check_others(others)


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
def test_a_listener_that_raises_anything_disturbs_nobody(bench: FaultBench, error: type[BaseException]):
    def broken() -> None:
        raise error("gone")

    others, victim = bench.everybody()
    victim._listener = broken
    assert read(victim)[1].reason is FinishReason.LENGTH
    bench.check_others(others)


def test_a_consumer_whose_event_loop_is_closed_disturbs_nobody(bench: FaultBench):
    others, victim = bench.everybody()
    loop = asyncio.new_event_loop()
    loop.close()
    victim._listener = lambda: loop.call_soon_threadsafe(print)
    bench.check_others(others)
    assert read(victim)[1].reason is FinishReason.LENGTH


def test_a_slow_consumer_gets_everything_late_and_delays_nobody(bench: FaultBench):
    others, victim = bench.everybody()
    slow = iter(victim.events())
    first = next(slow)
    bench.check_others(others)
    while victim.finished is None:
        time.sleep(0.01)
    rest = list(slow)
    assert isinstance(first, TextDelta) and rest[-1] is victim.finished
    assert sum(len(e.token_ids) for e in [first, *rest[:-1]]) == victim.finished.completion_tokens


def test_an_abandoned_consumer_costs_nobody_anything(bench: FaultBench):
    others, victim = bench.everybody()
    number = victim.sequence_id
    del victim
    bench.check_others(others)
    while bench.on_thread(lambda: number in bench.engine._loop.scheduler.sequences):
        time.sleep(0.01)


class Phase:
    """Cancels the victim in the pass that `chosen` picks, and watches what follows."""

    def __init__(self, bench: FaultBench, tap: Tap, chosen) -> None:
        self.victim: Generation | None = None
        self.before_cancel: list | None = None
        self.generated = 0
        """Tokens that the victim had when it was cancelled."""
        self.next_pass: list[str] | None = None
        self.held_blocks = 0
        self._bench, self._tap, self._chosen = bench, tap, chosen
        tap.before = self._look

    def _look(self, batch: ModelBatch) -> None:
        if self.victim is None:
            return
        if self.before_cancel is None:
            mine = [s for s in batch.sequences if s.request.label == VICTIM]
            if self._chosen(batch, mine[0] if mine else None):
                self.generated = mine[0].num_generated
                self.before_cancel = self.victim.poll()
                self.victim.cancel()
        elif self.next_pass is None:
            self.next_pass = labels(batch)
            running = list(self._bench.engine._loop.scheduler.sequences.values())
            self.held_blocks = sum(len(s.block_table) for s in running if s.request.label == VICTIM)


def chunk(number: int):
    """The pass with the given chunk of the victim's prompt; -1: the last one."""

    def chosen(batch: ModelBatch, mine) -> bool:
        chunks = [c for c in batch.prefill if c.sequence is mine]
        if mine is None or not chunks:
            return False
        return chunks[0].completes if number < 0 else chunks[0].start >= number * 8

    return chosen


def decoding(after: int):
    return lambda batch, mine: mine in batch.decode and mine.num_generated >= after


@pytest.mark.parametrize(
    "chosen",
    [chunk(0), chunk(3), chunk(-1), decoding(1), decoding(7)],
    ids=["first chunk", "middle chunk", "last chunk", "first token", "decode"],
)
def test_cancelling_while_a_pass_runs(bench: FaultBench, chosen):
    phase = Phase(bench, bench.tap(), chosen)
    others, victim = bench.everybody(400, long=True)
    phase.victim = victim
    bench.check_others(others)
    ids, end = read(victim)
    assert phase.before_cancel is not None
    assert end.reason is FinishReason.CANCELLED
    told = sum(len(event.token_ids) for event in phase.before_cancel) + len(ids)
    assert told <= phase.generated, "a token of the pass that ran, or of a later one, was told"
    assert phase.next_pass is None or VICTIM not in phase.next_pass
    assert phase.held_blocks == 0, "blocks were held after the next tick began"


def test_cancelling_twice_and_from_two_threads(bench: FaultBench):
    others, victim = bench.everybody(400)
    next(iter(victim.events()))
    threads = [threading.Thread(target=victim.cancel) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(victim.events())
    assert [getattr(e, "reason", None) for e in events[-1:]] == [FinishReason.CANCELLED]
    bench.check_others(others)


def test_cancelling_what_waits_in_the_queue(bench: FaultBench):
    entered, go = threading.Event(), threading.Event()
    holder = threading.Thread(target=lambda: bench.on_thread(lambda: (entered.set(), go.wait(60))))
    holder.start()
    entered.wait(60)
    others = [bench.submit(subject) for subject in SUBJECTS]
    victim = bench.submit(VICTIM)
    victim.cancel()
    go.set()
    ids, end = read(victim)
    assert (ids, end.reason) == ([], FinishReason.CANCELLED)
    bench.check_others(others)


def test_cancelling_what_is_paused_on_request(bench: FaultBench):
    others, victim = bench.everybody(400)
    seen = threading.Event()

    def pause() -> None:
        # On the engine's thread: no test is too slow for it.
        victim.pause()
        seen.set()

    victim.set_listener(pause)
    assert seen.wait(60)
    bench.check_others(others)
    assert bench.on_thread(
        lambda: [s.user_paused for s in bench.engine._loop.scheduler.sequences.values()]
    ) == [True]
    victim.cancel()
    assert list(victim.events())[-1].reason is FinishReason.CANCELLED


def test_cancelling_what_is_paused_for_memory(bench: FaultBench):
    """Two that need the whole memory, and then the newest is paused."""
    made: list[Generation] = []
    tap = bench.tap()

    def cancel(batch: ModelBatch) -> None:
        live = bench.engine._loop.scheduler.sequences.values()
        if made and any(s.preemptions and s.state is SequenceState.PAUSED for s in live):
            made[1].cancel()

    made += bench.together(*[bench.request(VICTIM, 420, long=True)] * 2)
    tap.before = cancel
    first, second = made
    assert read(second)[1].reason is FinishReason.CANCELLED
    first.cancel()
    assert read(first)[1].reason is FinishReason.CANCELLED


def test_submitting_and_unloading_while_a_pass_runs(bench: FaultBench):
    doomed = bench.engine.load(bench.path)
    tap = bench.tap()
    made: list[Generation] = []
    unloading: list[threading.Thread] = []

    def during(batch: ModelBatch) -> None:
        if len(tap.passes) == 3:
            made.append(bench.submit(SUBJECTS[3]))
            unloading.append(threading.Thread(target=doomed.unload))
            unloading[0].start()
            while bench.engine._loop._inbox.qsize() < 2:
                time.sleep(0.001)

    tap.before = during
    gone = doomed.submit(bench.request(VICTIM, 400))
    others = bench.together(*map(bench.request, SUBJECTS[:3]))
    bench.check_others(others)
    assert read(gone)[1].reason is FinishReason.CANCELLED
    unloading[0].join(60)
    bench.check_others(made)
