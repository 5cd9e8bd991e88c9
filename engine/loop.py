"""The engine's thread: inbox → plan → run → commit → deliver, one round a tick.

Everything that changes scheduler or KV happens here. Commands from other threads wait in the inbox
until the start of the next tick, so a cancellation never races with a step in flight. A failure
ends the sequences that it belongs to; the thread goes on.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from engine.admission import Spill
from engine.answer import Answer, never_started
from engine.cost_model import CostModel
from engine.errors import EngineClosedError, EngineError
from engine.generation import Generation
from engine.host import ResidentModel
from engine.kv_budget import KVBudget
from engine.request import Action, FinishReason, Priority
from engine.run_ahead import rows_alone, run_ahead, step_failed
from engine.sampler import Sampled
from engine.scheduler import ModelBatch, Scheduler, SchedulerConfig, TickPlan
from engine.sequence import Sequence
from engine.snapshot import SnapshotTaker
from engine.stats import EngineStats
from engine.tick_log import TickLog
from kernels.ops import Operations

log = logging.getLogger(__name__)

_HOST_MEMORY_FROM = 0.6
"""Part of the KV budget in use from which host memory is taken for what will be evicted."""

_IDLE_PAUSE_S = 0.02
"""Between two pieces of idle work, so that other threads have the interpreter."""

_CLOSED = "the engine is closed; create a new one"

T = TypeVar("T")
Command = Callable[[], object]


class EngineLoop:
    """Owns the scheduler, the resident models and the answers in flight."""

    def __init__(self, config: SchedulerConfig, ops: Operations, kv_limit: Callable[[int], int]) -> None:
        """kv_limit: from the bytes that KV holds now to the most that it may take."""
        self._config = config
        self._kv_limit = kv_limit
        self._budget = KVBudget(kv_limit(0))
        self.scheduler = Scheduler(CostModel(), config)
        self._models: dict[int, ResidentModel] = {}
        self._answers: dict[int, Answer] = {}
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._posting = threading.Lock()
        self._closing = threading.Event()
        self._closed = False
        """Set under `_posting` before the inbox is drained for the last time."""
        self._ops = ops
        self.ticks = TickLog()
        self._snapshots = SnapshotTaker(ops, self._budget)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Cancel everything and end the thread."""
        if not self._closing.is_set():
            self._closing.set()
            self._post(lambda: None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def check_open(self) -> None:
        """Raise `EngineClosedError` after `stop`."""
        if self._closing.is_set():
            raise EngineClosedError(_CLOSED)

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the engine's thread between ticks and wait for its result.

        Raises `EngineClosedError` after `stop`, and `EngineError` on the engine's own thread.
        """
        self.check_open()
        if self._thread is threading.current_thread():
            raise EngineError(
                "a generation's listener runs on the engine's thread and cannot wait for the engine; "
                "call from another thread"
            )
        future: Future[T] = Future()

        def command() -> None:
            try:
                self.check_open()
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        if not self._post(command):
            raise EngineClosedError(_CLOSED)
        return future.result()

    def submit(self, sequence: Sequence, generation: Generation) -> None:
        """Hand over a checked request; raises `EngineClosedError` after the end."""
        if not self._post(lambda: self._admit(sequence, generation)):
            raise EngineClosedError(_CLOSED)

    def steer(self, sequence_id: int, what: Action | Priority) -> None:
        """End, pause, resume or rank one sequence at the next tick; nothing is left to do after its end."""
        self._post(lambda: self._steer(sequence_id, what))

    def focus(self, sequence_id: int | None) -> None:
        """Put one sequence before all others from the next tick on; None: nobody."""
        self._post(lambda: self.scheduler.focus(sequence_id))

    def drop_model(self, key: int) -> None:
        """Unload a model without waiting for it."""
        self._post(lambda: self.remove_model(key))

    def _post(self, command: Command) -> bool:
        """Queue a command; False when the thread takes no more. Every queued command is run."""
        with self._posting:
            if not self._closed:
                self._inbox.put(command)
            return not self._closed

    def stats(self) -> EngineStats:
        """The latest snapshot."""
        return self._snapshots.latest

    def add_model(self, resident: ResidentModel) -> None:
        """Make a loaded model schedulable; on the engine's thread."""
        self._models[resident.key] = resident
        self.update_budget()
        blocks = resident.open_blocks(self._budget)
        self.scheduler.add_model(resident.key, blocks, resident.context_length)
        self.scheduler.host_gb_s = self._ops.host_gb_s
        self._take_snapshot()

    def remove_model(self, key: int) -> threading.Event | None:
        """End a model's sequences and forget it; on the engine's thread.

        Returns what is set when its memory is back, None for a model that is not there.
        """
        resident = self._models.pop(key, None)
        if resident is None:
            return None
        for sequence in self.scheduler.remove_model(key):
            self._end(sequence, FinishReason.CANCELLED, "the model was unloaded")
        resident.runner.close()
        self.update_budget()
        self._take_snapshot()
        return resident.runner.freed

    def make_room(self) -> None:
        """Give back the memory of cached KV; on the engine's thread."""
        for model in self._models.values():
            model.blocks.evict_all()
            model.runner.trim_kv(model.blocks.highest_used + 1)

    def update_budget(self) -> None:
        """What KV may take changes with what weights take; on the engine's thread."""
        self._budget.set_total(self._kv_limit(sum(m.runner.kv_bytes for m in self._models.values())))

    def resident(self, key: int) -> ResidentModel:
        """A resident model; on the engine's thread. Raises `EngineClosedError` once it is removed."""
        model = self._models.get(key)
        if model is None:
            raise EngineClosedError("the model was unloaded; load it again")
        return model

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._round()
        finally:
            self._closing.set()
            self._shut()

    def _round(self) -> None:
        try:
            self._drain_inbox()
            if not self._closing.is_set():
                self._tick()
        except Exception as error:
            log.exception("a tick failed outside any model's step")
            self._start_over(f"the engine failed inside: {type(error).__name__}: {error}")

    def _drain_inbox(self) -> None:
        """Run waiting commands; where nothing can run, wait for the next one."""
        if self.scheduler.idle:
            self._take_snapshot()
            self._next_command()()
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _next_command(self) -> Command:
        """Wait for a command; meanwhile do piece by piece what later passes would wait for."""
        working = False
        while True:
            more = any(model.runner.idle_work() for model in self._models.values() if self._inbox.empty())
            if working and not more:
                self.update_budget()
            working = more
            try:
                return self._inbox.get(timeout=_IDLE_PAUSE_S if more else None)
            except queue.Empty:
                continue

    def _tick(self) -> None:
        if self.scheduler.idle:
            return
        plan = self.scheduler.plan(time.monotonic())
        if plan.empty:
            raise RuntimeError("no sequence can make progress")
        batch = rows_alone(plan)
        if batch is not None and self._models[batch.model].runner.max_ahead:
            self._run_ahead(plan, batch)
            return
        started = time.perf_counter()
        sampled, failed = self._run_batches(plan)
        self._settle(plan, Sampled(sampled, failed), time.perf_counter() - started)

    def _run_ahead(self, plan: TickPlan, batch: ModelBatch) -> None:
        def settle(plan: TickPlan, sampled: Sampled, seconds: float, more: bool) -> None:
            self._observe(batch, seconds)
            self._settle(plan, sampled, seconds, more)

        def interrupted() -> bool:
            return self._closing.is_set() or not self._inbox.empty()

        run_ahead(plan, self._models[batch.model].runner, self.scheduler, settle, interrupted)

    def _settle(self, plan: TickPlan, sampled: Sampled, seconds: float, more: bool = False) -> None:
        """Account and deliver one tick."""
        self.ticks.add(plan, seconds, [self._models[batch.model].runner.notes for batch in plan.batches])
        now = time.monotonic()
        ended = self.scheduler.commit(plan, sampled.ids, sampled.failed, now, more=more)
        self._deliver(sampled.ids, ended, now)
        self._snapshots.tick(plan, seconds, now)
        if self._snapshots.due(now):
            self._take_snapshot()
            for model in self._models.values():
                model.runner.trim_kv(model.blocks.highest_used + 1)
                self._grow_host_memory(model)

    def _grow_host_memory(self, model: ResidentModel) -> None:
        """Have as much host memory as the device holds of a model's KV, once memory becomes short."""
        budget, slots = self._budget, self._config.host_kv_bytes // model.block_bytes
        if slots and self._config.spill is not Spill.NEVER:
            if budget.used_bytes > _HOST_MEMORY_FROM * budget.total_bytes:
                model.runner.host_blocks.grow_to(min(slots, model.blocks.num_kept * 2))
            model.blocks.host.grow(min(slots, model.runner.host_blocks.capacity))

    def _run_batches(self, plan: TickPlan) -> tuple[dict[int, int], dict[int, str]]:
        sampled: dict[int, int] = {}
        failed = self._move_blocks(plan)
        for batch in plan.batches:
            result = self._run_batch(batch, learn=not plan.moves)
            sampled.update(result.ids)
            failed.update(result.failed)
        return sampled, failed

    def _move_blocks(self, plan: TickPlan) -> dict[int, str]:
        """Copy KV to host memory and back; returns a cause for each sequence that has lost its KV."""
        failed: dict[int, str] = {}
        for key, moves in plan.moves.items():
            resident = self._models[key]
            try:
                resident.runner.save_blocks(moves.saves)
                resident.runner.load_blocks(moves.loads)
            except Exception as error:
                log.exception("moving KV blocks failed")
                resident.blocks.host.clear()
                lost = {block for block, _ in moves.loads}
                cause = f"its KV could not be brought back from host memory: {error}"
                for sequence in self.scheduler.running:
                    if sequence.model == key and not lost.isdisjoint(sequence.block_table):
                        failed[sequence.sequence_id] = cause
        return failed

    def _run_batch(self, batch: ModelBatch, *, learn: bool = True) -> Sampled:
        started = time.perf_counter()
        try:
            result = self._models[batch.model].runner.run(batch)
        except Exception as error:
            return step_failed(batch, error)
        if learn:
            # Copies of KV in the same tick would be taken for the pass's own time.
            self._observe(batch, time.perf_counter() - started)
        return result

    def _observe(self, batch: ModelBatch, seconds: float) -> None:
        self.ticks.expect(self.scheduler.cost.predict(batch.model, batch.load))
        self.scheduler.observe(batch, seconds * 1e3)

    def _deliver(self, sampled: dict[int, int], ended: list[Sequence], now: float) -> None:
        for sequence in ended:
            self._end(sequence, sequence.finish_reason or FinishReason.ERROR, sequence.error)
        for sequence_id, token_id in sampled.items():
            answer = self._answers.get(sequence_id)
            if answer is not None:
                self._deliver_one(answer, token_id, now)

    def _deliver_one(self, answer: Answer, token_id: int, now: float) -> None:
        try:
            over = answer.token(token_id, now)
        except Exception as error:
            log.exception("delivering a token failed")
            self._end(answer.sequence, FinishReason.ERROR, f"decoding the text failed: {error}")
            return
        if over is not None:
            reason, stop = over
            self._end(answer.sequence, reason, None, stop)

    def _admit(self, sequence: Sequence, generation: Generation) -> None:
        try:
            answer = Answer(sequence, generation, self.resident(sequence.model).tokenizer)
            self.scheduler.submit(sequence)
        except Exception as error:
            generation.push(never_started(sequence, str(error)))
            return
        self._answers[sequence.sequence_id] = answer

    def _steer(self, sequence_id: int, what: Action | Priority) -> None:
        answer = self._answers.get(sequence_id)
        if answer is None:
            return
        if what is Action.CANCEL:
            self._end(answer.sequence, FinishReason.CANCELLED)
        elif what is Action.PAUSE:
            self.scheduler.hold(sequence_id)
        elif what is Action.RESUME:
            self.scheduler.let_go(sequence_id)
        else:
            self.scheduler.set_priority(sequence_id, Priority(what))

    def _end(
        self, sequence: Sequence, reason: FinishReason, error: str | None = None, stop: str | None = None
    ) -> None:
        """Free the sequence's blocks and row, then tell its consumer, exactly once."""
        answer = self._answers.pop(sequence.sequence_id, None)
        if answer is None:
            return
        try:
            self.scheduler.finish(sequence)
        finally:
            answer.finish(reason, time.monotonic(), error, stop)

    def _start_over(self, cause: str) -> None:
        """End everything and open new books: after a failure outside a step the old ones may be wrong."""
        answers, self._answers = self._answers, {}
        try:
            self._open_books()
        finally:
            now = time.monotonic()
            for answer in answers.values():
                answer.finish(FinishReason.ERROR, now, cause)

    def _open_books(self) -> None:
        scheduler = Scheduler(CostModel(), self._config)
        self._budget = KVBudget(self._budget.total_bytes)
        self._snapshots.budget = self._budget
        for resident in self._models.values():
            scheduler.add_model(resident.key, resident.open_blocks(self._budget), resident.context_length)
        scheduler.host_gb_s = self._ops.host_gb_s
        # Submitting threads read it: they must never see one that lacks a resident model.
        self.scheduler = scheduler

    def _take_snapshot(self) -> None:
        try:
            self._snapshots.take(self.scheduler, self._models, self._answers, time.monotonic())
        except Exception:
            log.exception("taking the statistics failed")

    def _shut(self) -> None:
        with self._posting:
            self._closed = True
        while not self._inbox.empty():
            try:
                self._inbox.get_nowait()()
            except Exception:
                log.exception("a command failed while closing")
        for answer in list(self._answers.values()):
            try:
                self._end(answer.sequence, FinishReason.CANCELLED, "the engine was closed")
            except Exception:
                log.exception("ending a sequence failed while closing")
        for model in self._models.values():
            model.runner.close()
        for model in self._models.values():
            model.runner.freed.wait()
        self._models.clear()
        self._take_snapshot()
