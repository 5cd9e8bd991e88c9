"""The few largest values of long rows, and places in their running sums, found block by block.

A row of logits is read once for the maxima, or sums, of its blocks; all else looks into a few blocks. torch's
own argmax, top-k and cumulative sum of a row cost ten times as much or more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

WIDTH = 64
"""Values of a block; a row's last one may have fewer."""
_ALL_BELOW = 256 * WIDTH
_LEAST_SHARE = 8
"""Candidates are put in order where there are so many times fewer than values."""


@dataclass(frozen=True)
class RowBlocks:
    """values [R, N] by blocks."""

    values: Tensor

    @cached_property
    def maxima(self) -> Tensor:
        """[R, ceil(N / WIDTH)]; NaN where a block has one."""
        return _by_block(self.values, lambda blocks: blocks.amax(-1))

    def rows(self, index: Tensor) -> "RowBlocks":
        """Some of the rows, in their order."""
        return self if len(index) == len(self.values) else RowBlocks(self.values[index])

    def best(self) -> Tensor:
        """int64 [R]: the first of the largest values; any place in rows that have a NaN."""
        if self.values.device.type == "cpu":
            # A tenth of torch's time, which looks at one value after the other.
            return torch.from_numpy(self.values.numpy().argmax(-1))
        if _is_whole(self.values):
            return self.values.argmax(-1)
        values, ids = self.block_values(self.maxima.argmax(-1, keepdim=True))
        return ids.flatten(-2).gather(-1, values.flatten(-2).argmax(-1, keepdim=True)).squeeze(-1)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest of each row, the largest first, and int64 ids of them: [R, count] both."""
        if _is_whole(self.values) or _LEAST_SHARE * count * WIDTH > self.values.shape[-1]:
            return torch.topk(self.values, count, dim=-1)
        # Whatever is among the largest lies in a block whose maximum is.
        values, ids = self.block_values(self.maxima.topk(count, dim=-1, sorted=False).indices)
        found, places = values.flatten(-2).topk(count, dim=-1)
        return found, ids.flatten(-2).gather(-1, places)

    def block_values(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """blocks int64 [R, B] → their values and ids [R, B, WIDTH]; -inf behind a row's end."""
        length = self.values.shape[-1]
        ids = blocks[..., None] * WIDTH + torch.arange(WIDTH, device=blocks.device)
        inside = ids.clamp(max=length - 1)
        values = self.values.gather(-1, inside.flatten(-2)).view(ids.shape)
        return values.masked_fill(ids >= length, -torch.inf), inside


def sums(values: Tensor) -> Tensor:
    """[R, ceil(N / WIDTH)]: of each block."""
    return _by_block(values, lambda blocks: blocks.sum(-1))


def place(weight: Tensor, uniform: Tensor, of_blocks: Tensor | None = None) -> Tensor:
    """int64 [R]: where the running sums of weight [R, N] pass a share of them; never a weight of 0.

    uniform: float64 [R] in [0, 1); of_blocks: `sums` of the weight, where they are known.
    """
    if _is_whole(weight):
        running = weight.cumsum(-1)
        return _passed(weight, running, uniform * running[:, -1])
    per_block = sums(weight) if of_blocks is None else of_blocks
    running = per_block.cumsum(-1)
    wanted = uniform * running[:, -1]
    block = _passed(per_block, running, wanted)[:, None]
    values, ids = RowBlocks(weight).block_values(block)
    inside, ids = values.squeeze(-2).clamp_(min=0), ids.squeeze(-2)
    before = running.gather(-1, block) - per_block.gather(-1, block)
    at = _passed(inside, inside.cumsum(-1) + before, wanted)
    return ids.gather(-1, at[:, None]).squeeze(-1)


def _is_whole(values: Tensor) -> bool:
    """Whether values are looked at together: where they are few, or a device does so at once."""
    return values.shape[-1] < _ALL_BELOW or values.device.type != "cpu"


def _passed(weight: Tensor, running: Tensor, wanted: Tensor) -> Tensor:
    """Where the running sum of weight [R, N] passes `wanted`, else the last weight that is not 0."""
    index = torch.searchsorted(running, wanted[:, None], right=True).squeeze(-1)
    rank = torch.arange(weight.shape[-1], device=weight.device)
    return torch.minimum(index, torch.where(weight > 0, rank, 0).amax(-1))


def _by_block(values: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    whole = values.shape[-1] // WIDTH * WIDTH
    parts = [reduce(values[:, :whole].unflatten(-1, (-1, WIDTH)))] if whole else []
    if whole < values.shape[-1]:
        parts.append(reduce(values[:, whole:])[:, None])
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
