"""The engine's thread: inbox → plan → run → commit → deliver, one round a tick.

Everything that changes scheduler or KV happens here. Commands from other threads wait in the inbox until
the next tick, so a cancellation never races with a step in flight. A failure ends its own sequences;
after one of the device itself models are loaded again (`recovery.device_recovery`).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from engine.api.detail import EngineDetail
from engine.api.errors import DeviceLostError, EngineFailedError
from engine.api.event_stream import EventStream
from engine.api.request import Action, FinishReason, Priority
from engine.api.stats import EngineStats
from engine.core.command_thread import Command
from engine.core.context_commands import ContextCommands
from engine.core.executor import Executor
from engine.core.figures.stats_collector import StatsCollector
from engine.core.figures.tick_log import TickLog
from engine.core.model_loader import ModelOrigin, ResidentModel
from engine.core.multi_step import MultiStep
from engine.core.output_processor import OutputProcessor, deliver, never_started
from engine.core.recovery.device_recovery import DeviceTrial, queue_again, rewind
from engine.core.resident_models import ResidentModels
from engine.core.saved_kv.kv_disk import KVDisk
from engine.device.faults import describe, is_lost
from engine.disk.store import KVStore
from engine.model.weights import Progress
from engine.runner.base import Runner
from engine.runner.sampler import Sampled
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel
from engine.scheduler.plan import ModelBatch, TickPlan
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from engine.speculation.speculator import Speculator
from kernels.contract import Operations

log = logging.getLogger(__name__)

_IDLE_PAUSE_S = 0.02
"""Between two pieces of idle work, so that other threads have the interpreter."""


class EngineLoop(ContextCommands):
    """Owns the scheduler, the resident models and the outputs of running sequences."""

    def __init__(
        self,
        config: SchedulerConfig,
        ops: Operations,
        kv_limit: Callable[[int], int],
        rebuild: Callable[[ModelOrigin, Progress], ResidentModel],
        store: KVStore | None = None,
        elsewhere: Callable[[], str] = str,
    ) -> None:
        """kv_limit: from the bytes that KV holds now to the most that it may take.

        rebuild: loads a model again after the device has failed. store: keeps KV of chats, if any does.
        """
        super().__init__("engine", ops.device)
        self._config = config
        self._rebuild_model = rebuild
        self.models = ResidentModels(config, kv_limit)
        self.wanted = lambda _key: None
        self.scheduler = Scheduler(CostModel(), config)
        self._speculator = self._new_speculator(self.scheduler)
        self.ticks = TickLog()
        self._executor = Executor(self.models.by_key, ops.device)
        self._trial = DeviceTrial(ops.device, elsewhere)
        self._outputs: dict[int, OutputProcessor] = {}
        self._ops = ops
        self.disk = KVDisk(store, ops, lambda: self._post_or_lose(lambda: None))
        self._stats = StatsCollector(ops, self.models, self.scheduler, self.disk.stats)

    def check_open(self) -> None:
        """Raise `EngineClosedError` after `stop`, `EngineFailedError` once the device is lost for good."""
        super().check_open()
        self._check_device()

    def _check_device(self) -> None:
        if self._stats.failure:
            raise EngineFailedError(self._stats.failure)

    def submit(self, sequence: Sequence, stream: EventStream) -> None:
        """Hand over a checked request; raises `EngineClosedError` after the end."""
        self._post_or_raise(lambda: self._admit(sequence, stream))

    def control(self, sequence_id: int, what: Action | Priority) -> None:
        """End, pause, resume or rank one sequence at the next tick; nothing is left to do after its end.

        Called by the garbage collector too, whatever its thread holds: it takes no lock.
        """
        self._post_or_lose(lambda: self._control(sequence_id, what))

    def focus(self, sequence_id: int | None) -> None:
        """Put one sequence before all others from the next tick on; None: nobody."""
        self._post(lambda: self.scheduler.focus(sequence_id))

    def drop_model(self, resident: ResidentModel) -> None:
        """Give back a model that may have been added or not, without waiting for it."""

        def drop() -> None:
            if self.remove_model(resident.key) is None:
                resident.runner.close()

        if not self._post(drop):
            resident.runner.close()

    def stats(self) -> EngineStats:
        """The latest snapshot."""
        return self._stats.latest

    def detail(self) -> EngineDetail | None:
        """The close look that was last taken; another one is taken soon."""
        return self._stats.detail(lambda: self._post(lambda: None))

    def add_model(self, resident: ResidentModel) -> None:
        """Make a loaded model schedulable; on the engine's thread."""
        try:
            self.models.add(resident)
            self._add_to_scheduler(resident, self.scheduler)
            self._check_answers_have_room(resident)
            self.update_budget()
        except Exception:
            # What could not be taken in leaves nothing behind, and ends nobody's answers.
            self.models.remove(resident.key)
            if resident.key in self.scheduler.models:
                self.scheduler.remove_model(resident.key)
            resident.runner.close()
            raise
        self._take_snapshot()

    def remove_model(self, key: int) -> threading.Event | None:
        """End a model's sequences and forget it; on the engine's thread.

        Returns what is set when its memory is back, None for a model that is not there.
        """
        resident = self.models.remove(key)
        if resident is None:
            self._remove_aside(key)
            return None
        for sequence in (*self.disk.remove(key), *self.scheduler.remove_model(key)):
            self._end(sequence, FinishReason.CANCELLED, "the model was unloaded")
        resident.runner.close()
        self.update_budget()
        self._take_snapshot()
        return resident.runner.freed

    def update_budget(self) -> None:
        """Let KV take what memory leaves it now, more or less than before; on the engine's thread."""
        self.models.update_budget(self.answers_bytes)
        self._end_overgrown()

    def _end_overgrown(self) -> None:
        """End who has as many tokens as there is KV: after a failure there may be less of it than before."""
        for sequence in self.scheduler.fit_budget():
            self._end(sequence, FinishReason.LENGTH)

    def _new_speculator(self, scheduler: Scheduler) -> Speculator:
        return Speculator(scheduler.cost, self._config, scheduler.make_room)

    def _add_to_scheduler(self, model: ResidentModel, scheduler: Scheduler) -> None:
        scheduler.add_model(model.key, model.blocks, self.models.context_of(model), model.runner.slow)
        scheduler.kv_admission.host_gb_s = self._ops.host_gb_s
        self.disk.add(model)
        longest = [other.longest_pass for other in self.models if other.longest_pass]
        if longest:
            scheduler.prefill_limit.hold(min(longest))

    def _round(self) -> None:
        lost: str | None = None
        try:
            idle = self.scheduler.idle and not self.disk.ready
            if idle:
                self._take_snapshot()
            self._drain_inbox(wait=idle)
            if not self._closing.is_set():
                self._move_files()
                self._tick()
        except Exception as error:
            if isinstance(error, DeviceLostError) or is_lost(error):
                lost = describe(error.__cause__ or error)
            else:
                log.exception("a tick failed outside any model's step")
                self._start_over(f"the engine failed inside: {type(error).__name__}: {error}")
        if lost is not None:
            # Not while the error is handled: its traceback holds the weights that have to go.
            self._rebuild(lost)

    def _next_command(self) -> Command:
        """Wait for a command; meanwhile do piece by piece what later passes would wait for."""
        working = False
        while True:
            more = self.models.idle_work(self._inbox.empty, self.scheduler.cost.observe)
            if working and not more:
                self.update_budget()
            working = more
            try:
                return self._inbox.get(timeout=_IDLE_PAUSE_S if more else self._stats.settles_in())
            except queue.Empty:
                if not more:
                    self._take_snapshot()

    def _move_files(self) -> None:
        """Move some KV from and to files; queue requests whose KV is back."""
        for sequence, wishes in self.disk.step():
            self._queue_waiting(sequence)
            for what in wishes:
                self._control(sequence.sequence_id, what)

    def _tick(self) -> None:
        if self.scheduler.idle:
            return
        plan = self.scheduler.plan(time.monotonic())
        if plan.empty:
            raise RuntimeError("no sequence can make progress")
        if plan.batches:
            self._speculator.draft(plan, self._runner_of(plan))
        batch = plan.decode_only
        if batch is not None and plan.may_queue and self._executor.may_multi_step(batch, plan):
            self._multi_step(plan, batch)
            return
        started = time.perf_counter()
        result = self._executor.run(plan)
        ended = time.perf_counter()
        for batch, ms in result.timings:
            self._learn(batch, ms)
        for tokens in result.out_of_memory:
            self.scheduler.prefill_limit.short(tokens)
        self._settle(plan, result.sampled, started, ended)

    def _runner_of(self, plan: TickPlan) -> Runner:
        return self.models.get(plan.batches[0].model).runner

    def _multi_step(self, plan: TickPlan, batch: ModelBatch) -> None:
        """Run decode rows again and again until one ends or other work waits."""
        runner = self._runner_of(plan)

        def extend(in_flight: int) -> bool:
            return not self._interrupted and self.scheduler.extend(plan, in_flight)

        steps = MultiStep(batch, runner, extend)
        for step in steps:
            if step.error is not None:
                sampled = self._executor.recover(batch, self._outputs, step.error)
                self._settle(plan, sampled, step.ended, step.ended)
                return
            self._learn(batch, (step.ended - step.started) * 1e3)
            self._settle(plan, step.sampled, step.started, step.ended, more=step.in_flight > 0)
            if steps.extending and not self._interrupted:
                steps.extending = not self._speculator.stops_queue(batch, runner, step.in_flight)

    @property
    def _interrupted(self) -> bool:
        """Whether other work waits for the end of the ticks in flight."""
        return self._closing.is_set() or not self._inbox.empty() or self.disk.ready

    def _learn(self, batch: ModelBatch, ms: float) -> None:
        """Compare a measured pass with what was predicted; before the tick's commit."""
        self.ticks.expect(self.scheduler.observe(batch, ms))

    def _settle(
        self, plan: TickPlan, sampled: Sampled, started: float, ended: float, more: bool = False
    ) -> None:
        """Account and deliver one tick; more: ticks of the same plan are in flight behind it."""
        seconds = ended - started
        notes = [self.models.get(batch.model).runner.notes for batch in plan.batches]
        self.ticks.add(plan, seconds, notes, self.scheduler.tick_limit_ms)
        now = time.monotonic()
        left = {"held": sampled.held, "unfinished": sampled.unfinished}
        over = self.scheduler.commit(
            plan, sampled.ids, sampled.failed, now, accepted=sampled.accepted, more=more, **left
        )
        self._executor.committed(plan)
        for sequence in over:
            self._end(sequence, sequence.finish_reason or FinishReason.ERROR, sequence.error)
        deliver(sampled, self._outputs, now, self._end)
        self._speculator.settle(plan, sampled.accepted, started, ended)
        self._stats.tick(plan, sum(map(len, sampled.accepted.values())), seconds, now)
        if self._stats.due(now):
            self._take_snapshot()
            self.models.fit_memory()

    def _admit(self, sequence: Sequence, stream: EventStream) -> None:
        try:
            self._check_device()
            output = OutputProcessor(sequence, stream, self.models.tokenizer(sequence.model))
            output.begin()
            self.models.touch(sequence.model, time.monotonic())
            if sequence.model in self.models.aside:
                self._park(sequence)
            elif not self.disk.hold(sequence):
                self.scheduler.submit(sequence)
        except Exception as error:
            stream.push(never_started(sequence, str(error)))
            return
        self._outputs[sequence.sequence_id] = output

    def _control(self, sequence_id: int, what: Action | Priority) -> None:
        output = self._outputs.get(sequence_id)
        if output is None:
            return
        if what is Action.CANCEL:
            self._end(output.sequence, FinishReason.CANCELLED)
        elif self.disk.keep_wish(sequence_id, what):
            return
        elif output.sequence.model in self.models.aside:
            self._control_parked(output.sequence, what)
        elif what is Action.PAUSE:
            self.scheduler.pause(sequence_id)
        elif what is Action.RESUME:
            self.scheduler.resume(sequence_id)
        else:
            self.scheduler.set_priority(sequence_id, Priority(what))

    def _end(
        self, sequence: Sequence, reason: FinishReason, error: str | None = None, stop: str | None = None
    ) -> None:
        """End its text, free its blocks and row, then tell its consumer, exactly once."""
        output = self._outputs.pop(sequence.sequence_id, None)
        if output is None:
            return
        self._speculator.forget(sequence.sequence_id)
        reason, stop = output.end_text(reason, error, stop)
        try:
            self.scheduler.finish(sequence, reason, error)
            self.disk.ended(sequence, reason)
            self.models.touch(sequence.model, time.monotonic())
        finally:
            output.finish(reason, time.monotonic(), error, stop)

    def _start_over(self, cause: str) -> None:
        """End everything and start anew: after a failure outside a step the bookkeeping may be wrong."""
        outputs, self._outputs = self._outputs, {}
        try:
            self._reset_scheduler()
        finally:
            # Whoever hears of an end and then asks must not be told of what is gone.
            self._take_snapshot()
            now = time.monotonic()
            for output in outputs.values():
                output.finish(FinishReason.ERROR, now, cause)

    def _reset_scheduler(self) -> None:
        scheduler = Scheduler(CostModel(), self._config)
        self.disk.clear()
        self.models.start_over()
        for resident in self.models:
            self._add_to_scheduler(resident, scheduler)
        # Submitting threads read it: they must never see one that lacks a resident model.
        self.scheduler = scheduler
        self._speculator = self._new_speculator(scheduler)

    def _rebuild(self, cause: str) -> None:
        """Load every model again and let every answer go on from its token ids."""
        log.error("the device failed (%s): its models are loaded again", cause)
        try:
            self._trial.check()
            for output in self._outputs.values():
                rewind(output)
            self._take_snapshot()
            self.models.reload(lambda origin: self._rebuild_model(origin, lambda *_: self.check_open()))
            focused = self.scheduler.focused
            self._reset_scheduler()
            queue_again(self._outputs, self.scheduler, self.models.aside)
            self.update_budget()
            self.scheduler.focus(focused)
        except Exception as error:
            log.exception("the engine could not be rebuilt")
            self._give_up(self._trial.given_up(cause, error))

    def _give_up(self, cause: str) -> None:
        """End everything with one cause and refuse what comes with it."""
        if not self._closing.is_set():
            self._stats.given_up(cause)
        self.models.drop()
        self.models.aside.clear()
        self._start_over(cause)

    def _take_snapshot(self) -> None:
        self._stats.take(self.scheduler, self._outputs, time.monotonic())

    def _finish(self) -> None:
        """End what runs and forget the models."""
        for output in list(self._outputs.values()):
            try:
                self._end(output.sequence, FinishReason.CANCELLED, "the engine was closed")
            except Exception:
                log.exception("ending a sequence failed while closing")
        self.disk.close()
        self.models.close()
        self.models.aside.clear()
        self._take_snapshot()
