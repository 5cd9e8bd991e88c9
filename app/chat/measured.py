"""What finished answers tell of their models: how fast they are here, and when they were used last."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.chat.conversation import AnswerStats
from app.settings.paths import Locations
from engine import EngineStats, Finished, FinishReason


class Measured:
    """Keeps it on disk, on a thread of its own.

    stats: the engine's newest snapshot, which names the device.
    """

    def __init__(self, places: Locations, stats: Callable[[], EngineStats | None]) -> None:
        self._places = places
        self._stats = stats
        self._writer = ThreadPoolExecutor(1, "measured")

    def note(self, model: str | None, finished: Finished, cost: AnswerStats) -> None:
        """Remember an answer that has ended, its cost without the reader's pauses."""
        stats = self._stats()
        if model is None or stats is None or finished.reason is FinishReason.ERROR:
            return
        self._writer.submit(self._write, Path(model), stats, finished, cost.tok_s)

    def close(self) -> None:
        """Wait until all is written."""
        self._writer.shutdown()

    def _write(self, model: Path, stats: EngineStats, finished: Finished, tok_s: float) -> None:
        # Not before the first frame.
        from app.models.fit.speeds import SpeedStore, reading_speed
        from app.models.listed.notes import ModelNotes
        from app.models.stores.ollama import weights_of

        ModelNotes(self._places.notes_file).note_use(model)
        speeds = SpeedStore(self._places.speeds_file)
        device = stats.device_of(weights_of(model))
        speeds.note(model, device, tok_s, finished.completion_tokens, reading_speed(finished))
