"""Log-probabilities of a few rows: computed on the device, read as plain numbers."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.api.request import MOST_TOP_LOGPROBS, TokenLogprobs
from engine.scheduler.sequence import Sequence


def logprobs_of(logits: Tensor, chosen: Tensor) -> Tensor:
    """logits float32 [M, vocab], chosen int [M] → int32 [M, 1 + 2 K]: float32 bits of the chosen tokens'
    log-probabilities and those of the K likeliest, then the ids of these.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    top, ids = logits.topk(min(MOST_TOP_LOGPROBS, logits.shape[-1]), dim=-1)
    own = logits.gather(-1, chosen[:, None].to(torch.int64))
    values = (torch.cat((own, top), dim=-1) - total).to(torch.float32)
    return torch.cat((values.view(torch.int32), ids.to(torch.int32)), dim=-1)


def read_logprobs(sequences: Seq[Sequence], told: Tensor) -> dict[int, TokenLogprobs]:
    """By sequence id: what `logprobs_of` told, which is on the host now, as far as each asks for it."""
    count = (told.shape[1] - 1) // 2
    values = told[:, : count + 1].contiguous().view(torch.float32).tolist()
    result = {}
    for sequence, (own, *top), ids in zip(sequences, values, told[:, count + 1 :].tolist(), strict=True):
        most = sequence.request.top_logprobs or 0
        result[sequence.sequence_id] = TokenLogprobs(own, tuple(zip(ids, top, strict=True))[:most])
    return result
