"""Choosing the next token of every row at once, in plain torch.

Order: penalties and bias, temperature, top-k, top-p, min-p, then a draw by one uniform number per row:
the inverse of the cumulative distribution of what is kept, from the best token down. Two kinds of rows
without a top-k need no order of logits, which would cost more than all else, and are drawn in order of
ids: those without a top-p, and those whose top-p alone keeps a good part of the mass. The latter draw
from all tokens until they meet one that is kept (rejection sampling), which has the kept ones' distribution.

A row's result depends on its own logits, parameters and uniform number alone, never on the other rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.masks import mask_bias

TOP_K_SORT_LIMIT = 1024
"""Rows that keep more candidates than this are sorted whole."""
LEAST_REJECTION_TOP_P = 0.25
"""With a smaller top-p too many of the tokens drawn from a whole row would not be kept."""
MOST_TRIES = 128
"""After so many the best token is taken: once in 10^16 draws with the least top-p."""
_MASK = (1 << 64) - 1


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
class TokenMasks:
    """The only tokens that some rows may have."""

    rows: Tensor
    """int64 [M]."""
    words: Tensor
    """int32 [M, ceil(vocab / 32)], a bit for each token, the lowest first."""


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
    all_greedy: bool
    masks: TokenMasks | None = None

    def rows(self, index: Tensor) -> "SamplingBatch":
        """Some of the rows, whose logits are edited already."""
        return SamplingBatch(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            uniform=self.uniform[index],
            edits=None,
            all_greedy=False,
        )


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a seed and a position (splitmix64: Steele, Lea and Flood 2014).

    A function of these alone: a row's draw does not depend on who else is in the batch.
    """
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return (z >> 11) * 2.0**-53


def choose_best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """`sample` of rows that are all greedy, and that nothing edits or masks."""
    finite = torch.isfinite(logits.sum(dim=-1))
    return torch.where(finite, logits.argmax(dim=-1), 0), finite


def sample(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """logits float32 [R, vocab] → (token ids int64 [R], finite bool [R]).

    Rows with a NaN or infinite logit, or whose every token edits and masks forbid, are reported as not
    finite and their id is 0.
    """
    finite = torch.isfinite(logits.sum(dim=-1))
    if batch.edits is not None:
        logits = _edit(logits, batch.edits)
    if batch.masks is not None:
        logits = logits.clone() if batch.edits is None else logits
        logits[batch.masks.rows] += mask_bias(batch.masks.words, logits.shape[-1])
    if batch.edits is not None or batch.masks is not None:
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
    keeps_all = (batch.top_k <= 0) | (batch.top_k >= logits.shape[-1])
    by_rejection = (batch.min_p <= 0) & (batch.top_p >= LEAST_REJECTION_TOP_P)
    by_id = keeps_all & ((batch.top_p >= 1) | by_rejection)
    drawn = torch.zeros_like(batch.top_k)
    for kind, draw in ((by_id, _draw_by_id), (~by_id, _draw_in_order)):
        rows = (kind & (batch.temperature > 0)).nonzero().squeeze(-1)
        if len(rows):
            drawn[rows] = draw(logits[rows], batch.rows(rows))
    return drawn


def _draw_in_order(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """From the best token down, of what top-k, top-p and min-p keep."""
    vocab = logits.shape[-1]
    limit = torch.where(batch.top_k > 0, batch.top_k, vocab)
    keep = int(limit.max())
    if keep <= TOP_K_SORT_LIMIT and keep < vocab:
        values, ids = torch.topk(logits, keep, dim=-1)
    else:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    weight = _weight(values, values[:, :1], batch.temperature)
    rank = torch.arange(values.shape[-1], device=logits.device)
    weight = weight.masked_fill(rank >= limit[:, None], 0.0)
    weight = _nucleus(weight, batch)
    return ids.gather(-1, _place(weight, batch.uniform)[:, None]).squeeze(-1)


def _draw_by_id(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """In order of ids: of what min-p keeps, or of all until one is met that top-p keeps."""
    best, best_ids = logits.max(dim=-1, keepdim=True)
    weight = _weight(logits, best, batch.temperature)
    weight = weight.masked_fill(weight < batch.min_p[:, None].to(torch.float64), 0.0)
    drawn = _place(weight, batch.uniform)
    left = (batch.top_p < 1).nonzero().squeeze(-1)
    for attempt in range(1, MOST_TRIES + 1):
        left = left[~_in_top_p(logits[left], weight[left], drawn[left], batch.top_p[left])]
        if not len(left):
            return drawn
        if attempt < MOST_TRIES:
            drawn[left] = _place(weight[left], _next_uniform(batch.uniform[left], attempt))
    drawn[left] = best_ids.squeeze(-1)[left]
    return drawn


def _weight(logits: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """float64 in [0, 1], 1 for the best token."""
    return ((logits - best) / temperature[:, None]).to(torch.float64).exp_()


def _place(weight: Tensor, uniform: Tensor) -> Tensor:
    """int64 [R]: where the cumulative sums of weight [R, N] pass a share of them; never a weight of 0."""
    cumulative = weight.cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    rank = torch.arange(weight.shape[-1], device=weight.device)
    return torch.minimum(index, torch.where(weight > 0, rank, 0).amax(dim=-1))


def _in_top_p(logits: Tensor, weight: Tensor, ids: Tensor, top_p: Tensor) -> Tensor:
    """bool [R]: whether the tokens before `ids` in the order of logits leave room in the top-p."""
    own = logits.gather(-1, ids[:, None])
    lower_id = torch.arange(logits.shape[-1], device=logits.device) < ids[:, None]
    earlier = (logits > own) | ((logits == own) & lower_id)
    before = torch.where(earlier, weight, 0.0).sum(dim=-1)
    return before < top_p.to(torch.float64) * weight.sum(dim=-1)


def _next_uniform(drawn: Tensor, attempt: int) -> Tensor:
    """float64 in [0, 1): further numbers of rows, with their first as a seed."""
    seeds = (drawn * 2.0**53).to(torch.int64).tolist()
    return drawn.new_tensor([uniform(seed, attempt - 1) for seed in seeds])


def _nucleus(weight: Tensor, batch: SamplingBatch) -> Tensor:
    """Top-p over what top-k left, then min-p relative to the best; the best always stays."""
    cumulative = weight.cumsum(dim=-1)
    before = cumulative - weight
    outside = before >= batch.top_p[:, None].to(torch.float64) * cumulative[:, -1:]
    outside |= weight < batch.min_p[:, None].to(torch.float64) * weight[:, :1]
    outside[:, 0] = False
    return weight.masked_fill(outside, 0.0)
