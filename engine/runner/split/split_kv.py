"""The paged KV of a model of which the processor computes layers: their pages are in host memory.

A block of a sequence has one number on both sides. Memory of the device is what budgets count; pages in host
memory are reserved, and become resident when they are written.
"""

from collections.abc import Sequence

from torch import Tensor

from engine.model.spec import ModelConfig
from engine.model.split.split_decoder import GroupKV
from engine.runner.model_kv import ModelKV, pool_bytes
from kernels.contract import Operations


def split_pool_bytes(
    ops: Operations, host_ops: Operations, config: ModelConfig, first: int
) -> tuple[list[int], list[int]]:
    """Of each pool, what a page takes of the device and of host memory; first: the device's first layer."""
    device = pool_bytes(ops, config, range(first, config.num_layers))
    return device, pool_bytes(host_ops, config, range(first))


class SplitKV(ModelKV):
    """The device's pages, with the host's beside them."""

    def __init__(
        self,
        ops: Operations,
        host_ops: Operations,
        config: ModelConfig,
        counts: Sequence[int],
        first: int,
    ) -> None:
        """counts: pages of each pool, scratch page 0 included; first: the device's first layer."""
        super().__init__(ops, config, counts, range(first, config.num_layers))
        self._host = ModelKV(host_ops, config, counts, range(first))
        self.groups = [GroupKV(*own) for own in zip(self._made, self._host.groups, strict=True)]

    def pieces(self, pool: int, page: int) -> list[Tensor]:
        """Those of the device, then those of the host."""
        return super().pieces(pool, page) + self._host.pieces(pool, page)
