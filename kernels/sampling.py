"""Choosing the next token of every row at once, in plain torch.

Order: penalties and bias, temperature, top-k, top-p, min-p, then the inverse of the cumulative
distribution at one uniform number per row. A row's result depends on its own logits, parameters and
uniform number alone, never on the other rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TOP_K_SORT_LIMIT = 1024
"""Rows that keep more candidates than this are sorted whole."""


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Sparse changes to logits, one entry per (row, token)."""

    rows: Tensor
    """int64 [N]."""
    tokens: Tensor
    """int64 [N]; a (row, token) pair appears once."""
    scale: Tensor
    """float32 [N], the repetition penalty: positive logits are divided by it, negative multiplied."""
    offset: Tensor
    """float32 [N], added last: bias less frequency and presence penalties."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of R rows, each [R]."""

    temperature: Tensor
    """float32; 0 is greedy."""
    top_k: Tensor
    """int64; 0 keeps all."""
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor
    """float64 in [0, 1)."""
    edits: LogitEdits | None
    max_top_k: int
    """Largest top_k of the sampled rows, or 0 when one of them keeps all."""
    all_greedy: bool


def sample(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """logits float32 [R, vocab] → (token ids int64 [R], finite bool [R]).

    Rows with a NaN or infinite logit, or whose every token the edits forbid, are reported as not
    finite and their id is 0.
    """
    finite = torch.isfinite(logits.sum(dim=-1))
    if batch.edits is not None:
        logits = _edit(logits, batch.edits)
        finite &= torch.isfinite(logits.amax(dim=-1))
    greedy = logits.argmax(dim=-1)
    if batch.all_greedy:
        return torch.where(finite, greedy, 0), finite
    if not bool(finite.all()):
        logits = torch.where(finite[:, None], logits, 0.0)
    drawn = _draw(logits, batch)
    chosen = torch.where(batch.temperature > 0, drawn, greedy)
    return torch.where(finite, chosen, 0), finite


def _edit(logits: Tensor, edits: LogitEdits) -> Tensor:
    logits = logits.clone()
    values = logits[edits.rows, edits.tokens]
    values = torch.where(values > 0, values / edits.scale, values * edits.scale) + edits.offset
    logits[edits.rows, edits.tokens] = values
    return logits


def _draw(logits: Tensor, batch: SamplingBatch) -> Tensor:
    vocab = logits.shape[-1]
    keep = batch.max_top_k
    if 0 < keep <= TOP_K_SORT_LIMIT and keep < vocab:
        values, ids = torch.topk(logits, keep, dim=-1)
    else:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    temperature = torch.where(batch.temperature > 0, batch.temperature, 1.0)
    scaled = (values - values[:, :1]) / temperature[:, None]
    weight = scaled.to(torch.float64).exp_()
    rank = torch.arange(values.shape[-1], device=logits.device)
    limit = torch.where(batch.top_k > 0, batch.top_k, vocab)
    weight = weight.masked_fill(rank >= limit[:, None], 0.0)
    weight = _nucleus(weight, batch)
    cumulative = weight.cumsum(dim=-1)
    target = batch.uniform[:, None] * cumulative[:, -1:]
    index = (cumulative <= target).sum(dim=-1, keepdim=True)
    last = (weight > 0).sum(dim=-1, keepdim=True) - 1
    return ids.gather(-1, torch.minimum(index, last)).squeeze(-1)


def _nucleus(weight: Tensor, batch: SamplingBatch) -> Tensor:
    """Top-p over what top-k left, then min-p relative to the best; the best always stays."""
    cumulative = weight.cumsum(dim=-1)
    before = cumulative - weight
    outside = before >= batch.top_p[:, None].to(torch.float64) * cumulative[:, -1:]
    outside |= weight < batch.min_p[:, None].to(torch.float64) * weight[:, :1]
    outside[:, 0] = False
    return weight.masked_fill(outside, 0.0)
