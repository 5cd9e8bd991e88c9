"""The processor's operations in the place of a GPU's, for models that are divided between the two."""

from dataclasses import dataclass

import torch

from kernels.cpu.operations import CPUOperations
from kernels.reference.paged_kv import PagedKV

CPU = torch.device("cpu")


@dataclass(slots=True)
class DeviceKV(PagedKV):
    """Pages that count what is backed, as those in a GPU's memory do."""

    backed_blocks: int = 1
    block_bytes: int = 1

    @property
    def mapped_bytes(self) -> int:
        """Memory that would be held."""
        return self.backed_blocks * self.block_bytes

    def back(self, blocks: int) -> None:
        """Back the first blocks at least."""
        self.backed_blocks = max(self.backed_blocks, blocks)

    def trim(self, blocks: int) -> None:
        """Give back memory behind the first blocks."""
        self.backed_blocks = blocks

    def close(self) -> None:
        """Nothing."""


class DeviceLike(CPUOperations):
    """Float32; models that are not divided cannot be loaded."""

    runs_ahead = True

    def __init__(self, block_size: int = 32) -> None:
        super().__init__(CPU, "float32", "float32", block_size)

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> DeviceKV:
        """With what a runner of a GPU asks of it."""
        made = super().make_kv(num_layers, num_blocks, kv_heads, head_dim)
        size = self.kv_block_bytes(num_layers, kv_heads, head_dim)
        return DeviceKV(made.layers, kv_heads, head_dim, self.block_size, self.kv_format, block_bytes=size)


def float32_host(kv_format: str, block_size: int) -> CPUOperations:
    """`kernels.select.host_operations` without any rounding."""
    return CPUOperations(CPU, "float32", kv_format, block_size)
