"""Copies between one model's KV blocks on a GPU and host memory, in the order of its passes."""

from collections import deque

import torch

from engine.cache.block_manager import KVMove
from engine.device.host_pool import HostPool
from engine.device.stream import DeviceStream, Mark
from engine.runner.base import PassNotes
from engine.runner.in_flight import InFlightStep
from engine.runner.model_kv import ModelKV

_KEPT_BLOCKS = 64
"""KV blocks that stay backed beyond the need: giving memory back and taking it again costs ticks."""


class BlockCopies:
    """Part of `GraphRunner`."""

    kv: ModelKV
    host_pools: list[HostPool]
    notes: PassNotes
    _stream: DeviceStream
    _in_flight: deque[InFlightStep]
    _mapped: int
    """Memory of the paged KV when its growth was noted last."""
    _moved: Mark | None
    """The last copy between device and host blocks."""

    @property
    def kv_bytes(self) -> int:
        """Memory that the paged KV holds now."""
        return self.kv.mapped_bytes

    def trim_kv(self, highest: list[int]) -> None:
        """Give back KV memory behind the highest pages in use, unless it is little or in use."""
        if self._in_flight or (self._moved is not None and not self._moved.query()):
            return
        trimmed = [self.kv.trim(pool, page + 1, _KEPT_BLOCKS) for pool, page in enumerate(highest)]
        if any(trimmed):
            self._mapped = self.kv.mapped_bytes
            self.notes.add(f"KV memory trimmed: {self._mapped >> 20} MiB")

    def offload_blocks(self, moves: list[KVMove]) -> None:
        """Queue copies of KV blocks to pinned host slots, behind the passes launched so far."""
        self.save_blocks(self.host_pools, moves)

    def reload_blocks(self, moves: list[KVMove]) -> None:
        """Queue copies of host slots to KV blocks, ahead of the passes launched from now on.

        Raises `MemoryError` when the device has no memory for them; nothing was copied then.
        """
        self.restore_blocks(self.host_pools, moves)

    @torch.inference_mode()
    def save_blocks(self, hosts: list[HostPool], moves: list[KVMove]) -> Mark:
        """Queue copies of KV blocks to slots of these pools, behind the passes launched so far."""
        with self._stream.current():
            self.kv.offload(hosts, moves)
            self.notes.add(f"{len(moves)} blocks to host memory")
            self._moved = self._stream.mark()
        return self._moved

    @torch.inference_mode()
    def restore_blocks(self, hosts: list[HostPool], moves: list[KVMove]) -> Mark:
        """Queue copies of slots of these pools to KV blocks; raises what `reload_blocks` raises."""
        for pool, page, _ in moves:
            self.kv.back(pool, page + 1)
        with self._stream.current():
            self.kv.reload(hosts, moves)
            self.notes.add(f"{len(moves)} blocks from host memory")
            self._moved = self._stream.mark()
        return self._moved
