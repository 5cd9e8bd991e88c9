"""What happened between KV and the disk, counted for statistics by several threads."""

import threading
from collections import Counter

from engine.api.stats import KVDiskStats


class KVDiskLog:
    """Counts; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._restores = 0
        self._tokens_restored = 0
        self._tokens_saved = 0
        self._refusals: Counter[str] = Counter()
        self._note = ""

    def restored(self, tokens: int) -> None:
        """A request got so many tokens back."""
        with self._lock:
            self._restores += 1
            self._tokens_restored += tokens
            self._note = ""

    def saved(self, tokens: int) -> None:
        """So many tokens were written."""
        with self._lock:
            self._tokens_saved += tokens

    def refused(self, why: str) -> None:
        """KV on disk is read again by the model; why: a few words behind "KV on disk"."""
        self._say(f"KV on disk {why}")

    def not_saved(self, why: str) -> None:
        """KV is not written."""
        self._say(f"KV is not saved: {why}")

    def _say(self, note: str) -> None:
        with self._lock:
            self._refusals[note] += 1
            self._note = note

    def stats(self, used_bytes: int, limit_bytes: int) -> KVDiskStats:
        """The counts now."""
        with self._lock:
            return KVDiskStats(
                bytes_used=used_bytes,
                bytes_limit=limit_bytes,
                restores=self._restores,
                tokens_restored=self._tokens_restored,
                tokens_saved=self._tokens_saved,
                refusals=tuple(self._refusals.items()),
                note=self._note,
            )
