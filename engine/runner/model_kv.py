"""The paged KV of one model: every group's pages, and the numbers that name them.

Groups whose layers see all of a context share one pool of numbers, pool 0: a block of a sequence is the
same page in each of them.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

from engine.model.spec import ModelConfig
from kernels.contract import Operations

T = TypeVar("T")


def kv_block_bytes(ops: Operations, config: ModelConfig) -> int:
    """Memory of one block in all layers."""
    return sum(
        ops.kv_block_bytes(len(group.layers), group.shape.kv_heads, group.shape.head_dim)
        for group in config.kv_groups
    )


class ModelKV:
    """Pages on the device."""

    def __init__(self, ops: Operations, config: ModelConfig, num_blocks: int) -> None:
        self._ops = ops
        self.groups: list[Any] = [
            ops.make_kv(len(group.layers), num_blocks, group.shape.kv_heads, group.shape.head_dim)
            for group in config.kv_groups
        ]
        """What the decoder's passes are prepared with."""
        self.block_bytes = kv_block_bytes(ops, config)

    def by_group(self, pools: Sequence[T]) -> list[T]:
        """What every group has, of what every pool has."""
        return [pools[0] for _ in self.groups]

    def pieces(self, block: int) -> list[Tensor]:
        """Views of the memory of one block in all layers."""
        return [piece for kv in self.groups for piece in self._ops.block_pieces(kv, block)]

    @property
    def mapped_bytes(self) -> int:
        """Memory that is held, where it grows and shrinks."""
        return sum(kv.mapped_bytes for kv in self.groups)

    @property
    def backed_blocks(self) -> int:
        """Leading blocks that are backed in all groups."""
        return min(kv.backed_blocks for kv in self.groups)

    def back(self, blocks: int) -> None:
        """Back the first `blocks` blocks at least; raises `MemoryError` when the device is full."""
        for kv in self.groups:
            kv.back(blocks)

    def trim(self, blocks: int) -> None:
        """Give back memory behind the first `blocks` blocks, which the device must have left."""
        for kv in self.groups:
            kv.trim(blocks)

    def close(self) -> None:
        """Give everything back; no kernel may run on it any more."""
        for kv in self.groups:
            kv.close()
