"""Streams of a GPU in which nobody else queues work, and a lock for what disturbs a capture.

torch hands out its streams in turn, 32 of a kind, so a process that loads model after model gets one
that is still in use: what one thread launches there, another thread's graph would hold. A stream taken
here is nobody else's until its owner is gone. Free ones are taken again before new ones: the vendor's
matrix library keeps tens of megabytes for every stream it ever ran in.
"""

import logging
import threading
import weakref

import torch

log = logging.getLogger(__name__)

CAPTURE_LOCK = threading.RLock()
"""Held while a graph is captured, and around calls that wait for the whole device or give memory back
to it: while any thread captures they fail, and the capture with them."""

_TRIES = 33
"""One more than torch has streams of a kind: then each was offered once."""

_KINDS = (0, -1)
"""Priorities; each has streams of its own."""

_lock = threading.Lock()
_taken: set[tuple[int, int]] = set()
_known: dict[tuple[int, int], tuple[torch.device, torch.cuda.Stream]] = {}
"""Streams that were taken before, with the device they were asked for, oldest first."""
_owners: "weakref.WeakValueDictionary[tuple[int, int], OwnStream]" = weakref.WeakValueDictionary()


def give_back_spare() -> None:
    """Hand what torch's allocator keeps for later back to the GPUs."""
    with CAPTURE_LOCK:
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:
            # It goes through all GPUs: one of them that is lost must not fail who works on another.
            log.warning("memory that is spare is not given back: %s", error)


class OwnStream:
    """One stream, given back when this object is gone. Raises RuntimeError when all are taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = _take(device)
        key = _key(self.stream)
        self._sides: list[OwnStream] = []
        weakref.finalize(self, _taken.discard, key)
        _owners[key] = self

    def sides(self, count: int) -> list[torch.cuda.Stream]:
        """`count` streams for work beside this one's; fewer when all are taken."""
        try:
            while len(self._sides) < count:
                self._sides.append(OwnStream(self._device))
        except RuntimeError:
            pass
        return [side.stream for side in self._sides[:count]]


def owner_of(stream: torch.cuda.Stream) -> OwnStream | None:
    """Who has taken a stream; None for one that was not taken here."""
    return _owners.get(_key(stream))


def _take(device: torch.device) -> torch.cuda.Stream:
    with _lock:
        for key, (place, stream) in _known.items():
            if key not in _taken and place == device:
                _taken.add(key)
                return stream
        for priority in _KINDS:
            for _ in range(_TRIES):
                stream = torch.cuda.Stream(device, priority=priority)
                key = _key(stream)
                if key not in _taken:
                    _taken.add(key)
                    _known[key] = device, stream
                    return stream
    raise RuntimeError("the device has no stream left: unload a model")


def _key(stream: torch.cuda.Stream) -> tuple[int, int]:
    return stream.device_index, stream.cuda_stream
