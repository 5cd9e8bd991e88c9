"""The paged KV of one model in memory that grows and shrinks with the blocks in use.

Blocks of all layers lie together, [num_blocks, layers, 2, kv_heads, block_size, head_dim], so that the
leading blocks are one leading piece of a `kernels.kv.vmm` range.
"""

import _thread
import math
import weakref

import torch

from kernels.cuda.streams import CAPTURE_LOCK
from kernels.kv.pages import LayerKV, TritonKV, page_planes
from kernels.kv.vmm import Memory, reserve
from kernels.quant.formats import KVFormat


class SlabKV:
    """Pages of all layers; only blocks below `backed_blocks` may be touched."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        kv_format: KVFormat,
        device: torch.device,
    ) -> None:
        """Reserve addresses for `num_blocks`; scratch block 0 is backed and zeroed."""
        size = (num_blocks, num_layers, 2, kv_heads, block_size)
        planes = [(dtype, (*size, width)) for dtype, width in page_planes(kv_format, head_dim)]
        self.num_blocks = num_blocks
        self.backed_blocks = 0
        self._block_bytes = [math.prod(shape[1:]) * dtype.itemsize for dtype, shape in planes]
        self._memories: list[Memory] = []
        self._forgotten = weakref.finalize(self, give_back, self._memories, device)
        self._forgotten.atexit = False
        try:
            for block_bytes in self._block_bytes:
                self._memories.append(reserve(device, num_blocks * block_bytes))
            self.back(1)
        except BaseException:
            self.close()
            raise
        tensors = [
            memory.tensor(dtype, shape) for memory, (dtype, shape) in zip(self._memories, planes, strict=True)
        ]
        for tensor in tensors:
            tensor[0].zero_()
        views = [tensor.transpose(0, 1) for tensor in tensors]
        self.pages = TritonKV(views[0], views[1] if len(views) > 1 else None)

    def layer(self, index: int) -> LayerKV:
        """The pages of one layer."""
        return self.pages.layer(index)

    @property
    def mapped_bytes(self) -> int:
        """Memory that is held."""
        return sum(memory.mapped_bytes for memory in self._memories)

    def back(self, blocks: int) -> None:
        """Back the first `blocks` blocks at least; raises `MemoryError` when the device is full."""
        if blocks <= self.backed_blocks:
            return
        for memory, block_bytes in zip(self._memories, self._block_bytes, strict=True):
            memory.resize(blocks * block_bytes)
        self._count()

    def trim(self, blocks: int) -> None:
        """Give back memory behind the first `blocks` blocks, which the device must have left."""
        for memory, block_bytes in zip(self._memories, self._block_bytes, strict=True):
            memory.resize(blocks * block_bytes)
        self._count()

    def close(self) -> None:
        """Give everything back; no kernel may run on it any more."""
        self._forgotten.detach()
        for memory in self._memories:
            memory.close()

    def _count(self) -> None:
        backed = [
            memory.mapped_bytes // block_bytes
            for memory, block_bytes in zip(self._memories, self._block_bytes, strict=True)
        ]
        self.backed_blocks = min(self.num_blocks, *backed)


def give_back(memories: list[Memory], device: torch.device) -> None:
    """Close what nobody has closed; the garbage collector calls it on any thread, amid a capture too."""
    if device.type == "cuda":
        # `threading` takes locks that the collector's thread may hold.
        _thread.start_new_thread(_close_when_idle, (memories, device))
    else:
        _close(memories)


def _close_when_idle(memories: list[Memory], device: torch.device) -> None:
    with CAPTURE_LOCK:
        torch.cuda.synchronize(device)
        _close(memories)


def _close(memories: list[Memory]) -> None:
    for memory in memories:
        memory.close()
