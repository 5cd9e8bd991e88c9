"""KV of chats on disk, as the engine's thread sees it: what ends is saved, what begins waits for it."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.api.request import FinishReason
from engine.api.stats import KVDiskStats
from engine.core.model_loader import ResidentModel
from engine.core.saved_kv.kv_disk_log import KVDiskLog
from engine.core.saved_kv.kv_restores import KVRestores, Wish
from engine.core.saved_kv.kv_saves import KVSaves
from engine.disk.fingerprint import Fingerprint, model_digest
from engine.disk.store import KVStore
from engine.runner.model_kv import window_sizes
from engine.scheduler.sequence import Sequence, WaitCause
from kernels.contract import Operations

log = logging.getLogger(__name__)

LEAST_TOKENS = 512
"""Fewer are read by the model as soon as a file is found, opened and read."""
_SAVE_S = 0.0001
"""Time between two ticks after which no further page is copied for files."""
_RESTORE_S = 0.005
"""The same for blocks that come back: somebody waits for them, and others would wait longer for a prompt."""
_FLUSH_S = 3.0
_LAST_FILE_S = 1.0


class KVDisk:
    """Called by the engine's thread, `stats` by anybody. Without a store there is never anything to do."""

    def __init__(self, store: KVStore | None, ops: Operations, wake: Callable[[], None]) -> None:
        """wake: gives the engine's thread a round; called by any thread."""
        self._ops = ops
        self._post = wake
        self._changed = threading.Event()
        self._log = KVDiskLog()
        self._models: dict[int, tuple[ResidentModel, Fingerprint]] = {}
        self.enabled = store is not None and store.enabled
        self._store = store or KVStore(Path(), 0)
        self._saves = KVSaves(self._store, self._log, self._wake)
        self._restores = KVRestores(self._store, self._log, self._wake)
        if store is not None:
            self._saves.writer.put(self._open)

    def stats(self) -> KVDiskStats | None:
        """What was saved and restored; None where nothing is kept."""
        return self._log.stats(self._store.used_bytes, self._store.limit_bytes) if self.enabled else None

    def add(self, model: ResidentModel) -> None:
        """Save and restore what a model computes from now on; in place of what had its key."""
        if self.enabled:
            try:
                self._models[model.key] = (model, _fingerprint(model, self._ops))
            except OSError as error:
                self._log.not_saved(f"{model.path}: {error.strerror or error}")

    def remove(self, key: int) -> list[Sequence]:
        """Forget a model; returns its requests that wait for their KV."""
        self._models.pop(key, None)
        self._saves.drop(key)
        return self._restores.of_model(key)

    def clear(self) -> None:
        """Forget all models, and whoever waits: what their blocks hold is lost."""
        self._models.clear()
        self._saves.drop()
        self._restores.clear()

    def hold(self, sequence: Sequence) -> bool:
        """Whether a new request waits for its KV from now on, until `step` returns it."""
        model, fingerprint = self._models.get(sequence.model, (None, None))
        if model is None or fingerprint is None:
            return False
        if sequence.num_target <= LEAST_TOKENS:
            return False
        held = self._restores.hold(sequence, model, fingerprint, LEAST_TOKENS)
        sequence.wait_cause = WaitCause.DISK if held else None
        return held

    def holds(self, key: int) -> bool:
        """Whether a request to a model waits for its KV."""
        return bool(self._restores.of_model(key))

    def keep_wish(self, sequence_id: int, what: Wish) -> bool:
        """Note what is asked of a request that waits here; False for one that does not."""
        return self._restores.keep_wish(sequence_id, what)

    def ended(self, sequence: Sequence, reason: FinishReason) -> None:
        """Save the KV of a sequence whose blocks were released just now."""
        if not self._restores.forget(sequence.sequence_id) and reason is not FinishReason.ERROR:
            self.save(sequence)

    def save(self, sequence: Sequence) -> int:
        """Save what is computed of a sequence; returns its tokens, 0 where they are too few to be saved."""
        model, fingerprint = self._models.get(sequence.model, (None, None))
        if model is None or fingerprint is None or sequence.num_computed < LEAST_TOKENS:
            return 0
        self._saves.add(sequence, model, fingerprint)
        return sequence.num_computed

    @property
    def ready(self) -> bool:
        """Whether `step` has something to do."""
        return self._restores.ready or self._saves.ready

    def step(self) -> list[tuple[Sequence, list[Wish]]]:
        """Move some blocks; returns requests that need not wait any more, and what was asked of them."""
        started = time.perf_counter()
        while time.perf_counter() < started + _RESTORE_S and self._restores.step():
            pass
        while self._saves.ready:
            self._saves.step()
            if time.perf_counter() >= started + _SAVE_S:
                break
        finished = self._restores.take_finished()
        for sequence, _ in finished:
            sequence.wait_cause = None
        return finished

    def last_save(self, key: int) -> threading.Event | None:
        """Set once what a model's chats left is saved; None where nothing is under way."""
        return self._saves.last_of(key)

    def close(self) -> None:
        """Save what has ended, as far as a few seconds allow; nothing is restored any more."""
        self._restores.clear()
        until = time.monotonic() + _FLUSH_S
        while self._saves.pending and (left := until - time.monotonic()) > 0.0:
            self._changed.clear()
            if self._saves.ready:
                self._saves.step()
            else:
                self._changed.wait(left)
        self._saves.drop()
        self._saves.writer.close(_LAST_FILE_S)

    def _wake(self) -> None:
        self._changed.set()
        self._post()

    def _open(self) -> None:
        try:
            self._store.open()
        except OSError as error:
            self._log.not_saved(f"{self._store.folder}: {error.strerror or error}")


def _fingerprint(model: ResidentModel, ops: Operations) -> Fingerprint:
    """Raises `OSError` when the model's file is gone."""
    groups = [
        (len(group.layers), group.shape.kv_heads, group.shape.head_dim, group.shape.window)
        for group in model.config.kv_groups
    ]
    return Fingerprint(
        kv_type=model.info.kv_dtype,
        kernels=", ".join(filter(None, (ops.name, model.info.placement))),
        shapes=f"{ops.block_size} {groups} {window_sizes(model.config)}",
        rope=str(model.config.ropes),
        model=model_digest(model.path, model.salt),
    )
