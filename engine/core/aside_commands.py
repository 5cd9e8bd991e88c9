"""What the engine's thread does when models make room for each other."""

from collections.abc import Callable
from dataclasses import replace

from engine.api.errors import EngineError
from engine.api.request import Action, FinishReason, Priority
from engine.api.stats import EngineStats, ModelState, SequenceState
from engine.core.aside_models import AsideModel, working
from engine.core.command_thread import CommandThread
from engine.core.model_loader import ResidentModel
from engine.core.output_processor import OutputProcessor
from engine.core.recovery.device_recovery import rewind
from engine.core.resident_models import ResidentModels
from engine.core.saved_kv.kv_disk import KVDisk
from engine.device.fit_advice import format_bytes
from engine.scheduler.limits import answers_bytes
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from engine.speculation.speculator import Speculator


class AsideCommands(CommandThread):
    """Part of `EngineLoop`; every method but `wanted` runs on its thread."""

    models: ResidentModels
    scheduler: Scheduler
    disk: KVDisk
    _outputs: dict[int, OutputProcessor]
    _speculator: Speculator

    wanted: Callable[[int], None]
    """Told the key of a model that is aside and asked for; returns at once."""

    @property
    def answers_bytes(self) -> int:
        """KV that the answers at hand need to go on."""
        return answers_bytes(self.scheduler.sequences.values(), self.scheduler.model)

    def _check_answers_have_room(self, resident: ResidentModel) -> None:
        """Raise `EngineError` where a model leaves KV less than answers at hand need."""
        short = self.answers_bytes - self.models.kv_limit
        if short > 0:
            raise EngineError(
                f"{resident.name}: answers that are being written need {format_bytes(short)} more for their "
                "context than it would leave; stop some, or load it when they have ended"
            )

    def put_aside(self, key: int) -> AsideModel:
        """Take a model out of work: its KV is forgotten, its paused answers and what comes wait for it.

        Raises `EngineError` while it answers. Its memory is the caller's to free.
        """
        resident = self.models.get(key)
        if working(key, self.scheduler.sequences) or self.disk.holds(key):
            raise EngineError(f"{resident.name}: it is answering; stop or pause its answers before")
        stats = next(one for one in self.stats().models if one.model_id == key)
        aside = AsideModel(
            resident.origin,
            replace(stats, state=ModelState.PAUSED, kv_groups=()),
            resident.last_used,
            resident.info.weight_bytes,
            resident,
        )
        # First of all: who submits meanwhile must find it in one of the two.
        self.models.aside.add(key, aside)
        for sequence in self.scheduler.set_aside(key):
            self._speculator.forget(sequence.sequence_id)
            rewind(self._outputs[sequence.sequence_id])
            self.models.aside.park(sequence)
        self.disk.remove(key)
        self.models.remove(key)
        self._take_snapshot()
        return aside

    def take_back(self, resident: ResidentModel) -> None:
        """Let a model that was aside work again, and go on with what waited for it.

        Raises `EngineError` where running answers would lose their memory; it stays aside then, without
        a copy in host memory.
        """
        aside = self.models.aside.get(resident.key)
        if aside is None:
            # It was unloaded meanwhile.
            resident.runner.close()
            return
        aside.kept = None
        self.add_model(resident)
        waiting = self.models.aside.parked(self._outputs, resident.key)
        model = self.scheduler.model(resident.key)
        # What waits keeps the room that it had.
        least = max(map(model.least_bytes, waiting), default=0)
        self.models.update_budget(max(self.answers_bytes, least))
        self.models.aside.remove(resident.key)
        for sequence in waiting:
            fresh = not sequence.user_paused and not sequence.preemptions
            if not (fresh and self.disk.hold(sequence)):
                self._queue_waiting(sequence)
        self.scheduler.fit_budget()
        self._take_snapshot()

    def fail_waiting(self, key: int, cause: str) -> None:
        """End what waits for a model that cannot come back now; what is paused on request goes on waiting."""
        for sequence in self.models.aside.parked(self._outputs, key):
            if not sequence.user_paused:
                self._end(sequence, FinishReason.ERROR, cause)

    def _remove_aside(self, key: int) -> None:
        """Forget a model that is aside; nothing happens for another."""
        waiting = self.models.aside.parked(self._outputs, key)
        aside = self.models.aside.remove(key)
        for sequence in waiting:
            self._end(sequence, FinishReason.CANCELLED, "the model was unloaded")
        if aside is not None and aside.kept is not None:
            aside.kept.runner.close()
        self._take_snapshot()

    def _park(self, sequence: Sequence) -> None:
        """Have a request wait for its model, and have that come back."""
        self.models.aside.park(sequence)
        self.wanted(sequence.model)

    def _control_parked(self, sequence: Sequence, what: Action | Priority) -> None:
        self.models.aside.control(sequence, what)
        if what is Action.RESUME:
            self.wanted(sequence.model)

    def _queue_waiting(self, sequence: Sequence) -> None:
        """Queue a request whose model, or whose KV, it waited for."""
        try:
            self.scheduler.submit(sequence)
        except Exception as error:
            self._end(sequence, FinishReason.ERROR, str(error))
            return
        sequence.wait_cause = None
        if sequence.user_paused:
            sequence.user_paused = False
            self.scheduler.pause(sequence.sequence_id)
        elif sequence.preemptions:
            sequence.state = SequenceState.PAUSED

    def stats(self) -> EngineStats:
        """The latest snapshot."""
        raise NotImplementedError

    def add_model(self, resident: ResidentModel) -> None:
        """Make a loaded model schedulable."""
        raise NotImplementedError

    def _end(
        self, sequence: Sequence, reason: FinishReason, error: str | None = None, stop: str | None = None
    ) -> None:
        """End a sequence."""
        raise NotImplementedError

    def _take_snapshot(self) -> None:
        """Publish statistics."""
        raise NotImplementedError
