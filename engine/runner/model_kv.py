"""The paged KV of one model: the pages of every group of layers, and the pools of numbers that name them.

Groups whose layers see all of a context share pool 0: a block of a sequence is the same page in each of
them. Groups whose layers see the newest tokens alone have a pool for each size of window.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from engine.cache.block_manager import KVMove
from engine.device.host_pool import HostPool
from engine.model.spec import KVGroup, ModelConfig
from kernels.contract import Operations
from kernels.cuda.streams import CAPTURE_LOCK

T = TypeVar("T")


def window_sizes(config: ModelConfig) -> list[int]:
    """Sizes of the windows whose layers have pools of their own.

    None where no layer sees all, or where a window is no less than the context.
    """
    windows = sorted({group.shape.window for group in config.kv_groups})
    return [size for size in windows if 0 < size < config.context_length] if windows[0] == 0 else []


def pool_bytes(ops: Operations, config: ModelConfig, layers: range | None = None) -> list[int]:
    """Memory of one block in all layers of pool 0, then of a page of each window; in some layers alone."""
    windows = window_sizes(config)
    sizes = [0] * (1 + len(windows))
    for group, pool in zip(config.kv_groups, _pools(config), strict=True):
        shape, count = group.shape, len(_own(group, layers))
        sizes[pool] += ops.kv_block_bytes(count, shape.kv_heads, shape.head_dim)
    return sizes


def _own(group: KVGroup, layers: range | None) -> Sequence[int]:
    return group.layers if layers is None else group.among(layers)


def _pools(config: ModelConfig) -> list[int]:
    """The pool of each group."""
    windows = window_sizes(config)
    return [
        1 + windows.index(group.shape.window) if group.shape.window in windows else 0
        for group in config.kv_groups
    ]


class ModelKV:
    """Pages on the device."""

    def __init__(
        self, ops: Operations, config: ModelConfig, counts: Sequence[int], layers: range | None = None
    ) -> None:
        """counts: pages of each pool, scratch page 0 included; layers: those that are here, if not all."""
        self._ops = ops
        self._pools = _pools(config)
        self.num_pools = len(counts)
        self._made: list[Any] = [
            ops.make_kv(count, counts[pool], group.shape.kv_heads, group.shape.head_dim) if count else None
            for group, pool in zip(config.kv_groups, self._pools, strict=True)
            for count in [len(_own(group, layers))]
        ]
        """By group; None for one without layers here."""
        self.groups: list[Any] = self._made
        """What the decoder's passes are prepared with."""

    def by_group(self, pools: Sequence[T]) -> list[T]:
        """What every group has, of what every pool has."""
        return [pools[pool] for pool in self._pools]

    def pieces(self, pool: int, page: int) -> list[Tensor]:
        """Views of the memory of a pool's page in all layers."""
        return [piece for kv in self._of(pool) for piece in self._ops.block_pieces(kv, page)]

    def offload(self, hosts: Sequence[HostPool], moves: Iterable[KVMove]) -> None:
        """Queue copies of pages into host slots."""
        for pool, page, slot in moves:
            pieces = self.pieces(pool, page)
            for kept, piece in zip(hosts[pool].parts(slot, pieces), pieces, strict=True):
                kept.copy_(piece, non_blocking=True)

    def reload(self, hosts: Sequence[HostPool], moves: Iterable[KVMove]) -> None:
        """Queue copies of host slots into pages."""
        for pool, page, slot in moves:
            pieces = self.pieces(pool, page)
            for kept, piece in zip(hosts[pool].parts(slot, pieces), pieces, strict=True):
                piece.copy_(kept, non_blocking=True)

    @property
    def mapped_bytes(self) -> int:
        """Memory that is held, where it grows and shrinks."""
        return sum(kv.mapped_bytes for kv in self._all)

    def back(self, pool: int, pages: int) -> None:
        """Back a pool's first pages at least; raises `MemoryError` when the device is full."""
        for kv in self._of(pool):
            kv.back(pages)

    def trim(self, pool: int, pages: int, spare: int) -> bool:
        """Give back memory behind a pool's first pages, unless it is little: whether some was.

        The device must have left it. spare: pages that stay backed beyond the need.
        """
        trimmed = False
        for kv in self._of(pool):
            if kv.backed_blocks > pages + pages // 4 + spare:
                kv.trim(pages + spare)
                trimmed = True
        return trimmed

    def empty(self) -> None:
        """Give back all memory that can be; nothing is in any page, and no kernel may run on them."""
        with CAPTURE_LOCK:
            for kv in self._all:
                kv.trim(1)

    def close(self) -> None:
        """Give everything back; no kernel may run on it any more."""
        for kv in self._all:
            kv.close()

    @property
    def _all(self) -> list[Any]:
        return [kv for kv in self._made if kv is not None]

    def _of(self, pool: int) -> list[Any]:
        groups = zip(self._made, self._pools, strict=True)
        return [kv for kv, own in groups if own == pool and kv is not None]
