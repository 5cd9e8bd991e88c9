"""Unpacking the types with one scale per 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Each function turns blocks, uint8 [n, block bytes], into `out`, float32 [n, 32]. Every product and
sum is rounded on its own, in the reference's order, so that results are equal bit for bit.
"""

import torch
from torch import Tensor


def aligned(part: Tensor) -> Tensor:
    """A copy that may be viewed as a wider type.

    `contiguous()` would not do: it hands a single block back as it lies, at an odd address.
    """
    return part.clone(memory_format=torch.contiguous_format)


def half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block, as float32 [n, 1]."""
    return aligned(blocks[:, start : start + 2]).view(torch.float16).float()


def unpack_q4_0(blocks: Tensor, out: Tensor) -> None:
    """Q4_0: d * (q - 8); 16-bit d, 16 bytes of low and high nibbles."""
    _nibbles(blocks[:, 2:], out)
    out.sub_(8).mul_(half(blocks, 0))


def unpack_q4_1(blocks: Tensor, out: Tensor) -> None:
    """Q4_1: d * q + m; 16-bit d and m, 16 bytes of nibbles."""
    _nibbles(blocks[:, 4:], out)
    out.mul_(half(blocks, 0)).add_(half(blocks, 2))


def unpack_q5_0(blocks: Tensor, out: Tensor) -> None:
    """Q5_0: d * (q - 16); 16-bit d, 32 fifth bits, 16 bytes of nibbles."""
    _fives(blocks[:, 2:6], blocks[:, 6:], out)
    out.sub_(16).mul_(half(blocks, 0))


def unpack_q5_1(blocks: Tensor, out: Tensor) -> None:
    """Q5_1: d * q + m; 16-bit d and m, 32 fifth bits, 16 bytes of nibbles."""
    _fives(blocks[:, 4:8], blocks[:, 8:], out)
    out.mul_(half(blocks, 0)).add_(half(blocks, 2))


def unpack_q8_0(blocks: Tensor, out: Tensor) -> None:
    """Q8_0: d * q; 16-bit d, 32 signed bytes."""
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(half(blocks, 0))


def _nibbles(packed: Tensor, out: Tensor) -> None:
    out[:, :16].copy_(packed & 15)
    out[:, 16:].copy_(packed >> 4)


def _fives(high: Tensor, packed: Tensor, out: Tensor) -> None:
    places = torch.arange(8, dtype=torch.uint8, device=high.device)
    bits = ((high.unsqueeze(-1) >> places) & 1).view(-1, 32) << 4
    out[:, :16].copy_((packed & 15) | bits[:, :16])
    out[:, 16:].copy_((packed >> 4) | bits[:, 16:])
