"""Which tokens may come next, from bits to what is added to logits."""

import torch
from torch import Tensor


def mask_bias(words: Tensor, vocab: int) -> Tensor:
    """words int32 [M, ceil(vocab / 32)], a bit for each token, the lowest first → float32 [M, vocab]:

    0 for tokens whose bit is set, else -inf.
    """
    bits = 1 << torch.arange(8, dtype=torch.uint8, device=words.device)
    allowed = (words.view(torch.uint8)[:, :, None] & bits) != 0
    return torch.where(allowed, 0.0, float("-inf")).flatten(1)[:, :vocab]
