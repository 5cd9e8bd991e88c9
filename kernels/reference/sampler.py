"""Choosing the next token of every row at once, in plain torch and NumPy.

Order: penalties and bias, temperature, top-k, top-p, min-p, then a draw by one uniform number per row:
the inverse of the cumulative distribution of what is kept, from the best token down. Of rows with a top-k or
a min-p the few tokens that these leave are put in order. Two kinds of rows without a top-k need no order of
logits, which would cost more than all else, and are drawn in order of ids: those without a top-p, and those
whose top-p alone keeps a good part of the mass. The latter draw from all tokens until they meet one that is
kept (rejection sampling), which has the kept ones' distribution.

A row's result depends on its own logits, parameters and uniform number alone, never on the other rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.masks import mask_bias
from kernels.reference.row_blocks import RowBlocks, place, sums

TOP_K_SORT_LIMIT = 1024
"""Rows that keep more candidates than this are sorted whole."""
_NEAR_BEST = 32
"""Blocks whose tokens are looked at for those before one in the order of logits."""
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
    """Parameters of R rows, each [R], in host memory: what is decided by them asks no device."""

    temperature: np.ndarray
    """float32; 0 is greedy."""
    top_k: np.ndarray
    """int64; 0 keeps all."""
    top_p: np.ndarray
    """float32, as min_p."""
    min_p: np.ndarray
    uniform: np.ndarray
    """float64 in [0, 1)."""
    edits: LogitEdits | None
    masks: TokenMasks | None = None

    def rows(self, index: np.ndarray) -> "SamplingBatch":
        """Some of the rows, whose logits are edited already."""
        return SamplingBatch(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            uniform=self.uniform[index],
            edits=None,
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


def best(
    logits: Tensor, edits: LogitEdits | None, masks: TokenMasks | None
) -> tuple[RowBlocks, Tensor, Tensor]:
    """logits float32 [R, vocab] → (logits as edited and masked, ids int64 [R] of the best, finite bool [R]).

    Rows with a NaN or infinite logit, or whose every token edits and masks forbid, are reported as not
    finite and their id is 0.
    """
    blocks, finite = _edited(logits, edits, masks)
    return blocks, torch.where(finite, blocks.best(), 0), finite


def _edited(logits: Tensor, edits: LogitEdits | None, masks: TokenMasks | None) -> tuple[RowBlocks, Tensor]:
    finite = _is_finite(logits.sum(dim=-1))
    if edits is not None:
        logits = _edit(logits, edits)
    if masks is not None:
        logits = logits.clone() if edits is None else logits
        logits[masks.rows] += mask_bias(masks.words, logits.shape[-1])
    if edits is not None or masks is not None:
        finite &= _is_finite(logits.amax(dim=-1))
    return RowBlocks(logits), finite


def _is_finite(values: Tensor) -> Tensor:
    """bool, in fewer operations than torch's own takes."""
    return values - values == 0


def sample(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """logits float32 [R, vocab] → (token ids int64 [R], finite bool [R]), reported as `best` does."""
    blocks, finite = _edited(logits, batch.edits, batch.masks)
    if not bool(finite.all()):
        blocks = RowBlocks(torch.where(finite[:, None], blocks.values, 0.0))
    drawn = _draw(blocks, batch)
    warm = batch.temperature > 0
    if not warm.all():
        drawn = torch.where(torch.from_numpy(warm).to(drawn.device), drawn, blocks.best())
    return torch.where(finite, drawn, 0), finite


def _edit(logits: Tensor, edits: LogitEdits) -> Tensor:
    logits = logits.clone()
    values = logits[edits.rows, edits.tokens]
    values = torch.where(values > 0, values / edits.scale, values * edits.scale) + edits.offset
    logits[edits.rows, edits.tokens] = values
    return logits


def _draw(logits: RowBlocks, batch: SamplingBatch) -> Tensor:
    vocab, device = logits.values.shape[-1], logits.values.device
    keeps_all = (batch.top_k <= 0) | (batch.top_k >= vocab)
    by_rejection = (batch.min_p <= 0) & (batch.top_p >= LEAST_REJECTION_TOP_P)
    by_id, warm = keeps_all & ((batch.top_p >= 1) | by_rejection), batch.temperature > 0
    if warm.all() and not by_id.any():
        return _draw_in_order(logits, batch)
    drawn = torch.zeros(len(by_id), dtype=torch.int64, device=device)
    for kind, draw in ((by_id, _draw_by_id), (~by_id, _draw_in_order)):
        rows = np.flatnonzero(kind & warm)
        if len(rows) == len(by_id):
            return draw(logits, batch)
        if len(rows):
            index = torch.from_numpy(rows).to(device)
            drawn[index] = draw(logits.rows(index), batch.rows(rows))
    return drawn


def _draw_in_order(logits: RowBlocks, batch: SamplingBatch) -> Tensor:
    """From the best token down, of what top-k, top-p and min-p keep."""
    vocab, device = logits.values.shape[-1], logits.values.device
    limit = np.where(batch.top_k > 0, np.minimum(batch.top_k, vocab), vocab)
    keep, total = int(limit.max()), None
    few = (limit <= TOP_K_SORT_LIMIT) | ((limit >= vocab) & (batch.min_p > 0))
    if keep > TOP_K_SORT_LIMIT and few.all():
        weight = _weight(logits, batch)
        likely = (weight >= _column(batch.min_p, device)).sum(-1).cpu().numpy()
        # Top-p is a share of all that top-k leaves.
        total = np.where(limit >= vocab, sums(weight).sum(-1).cpu().numpy(), 0.0)
        keep = int(np.where(limit >= vocab, likely, limit).max())
    if keep <= TOP_K_SORT_LIMIT and keep < vocab:
        values, ids = logits.top(keep)
    else:
        values, ids = torch.sort(logits.values, dim=-1, descending=True, stable=True)
    kept = _kept(values.cpu().numpy(), limit, batch, total)
    chosen = torch.from_numpy(_inverse(kept, batch.uniform)).to(device)
    return ids.gather(-1, chosen[:, None]).squeeze(-1)


def _kept(
    logits: np.ndarray, limit: np.ndarray, batch: SamplingBatch, total: np.ndarray | None
) -> np.ndarray:
    """logits [R, N] from the best down → float64 weights: top-k, then top-p of what it left, then min-p
    relative to the best, which always stays.

    total: float64 [R], the weight that top-k left where `logits` have not all of it, else 0.
    """
    weight = np.exp(((logits - logits[:, :1]) / batch.temperature[:, None]).astype(np.float64))
    weight[np.arange(logits.shape[-1]) >= limit[:, None]] = 0.0
    running = weight.cumsum(-1)
    mass = running[:, -1] if total is None else np.maximum(running[:, -1], total)
    outside = running - weight >= (batch.top_p.astype(np.float64) * mass)[:, None]
    outside |= weight < batch.min_p.astype(np.float64)[:, None]
    outside[:, 0] = False
    weight[outside] = 0.0
    return weight


def _inverse(weight: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """int64 [R]: where the running sums of weight [R, N] pass a share of them; never a weight of 0."""
    running = weight.cumsum(-1)
    passed = (running <= (drawn * running[:, -1])[:, None]).sum(-1)
    last = weight.shape[-1] - 1 - (weight > 0)[:, ::-1].argmax(-1)
    return np.minimum(passed, last)


def _draw_by_id(logits: RowBlocks, batch: SamplingBatch) -> Tensor:
    """In order of ids: of what min-p keeps, or of all until one is met that top-p keeps."""
    device = logits.values.device
    weight = _weight(logits, batch)
    if batch.min_p.any():
        weight.masked_fill_(weight < _column(batch.min_p, device), 0.0)
    of_blocks = sums(weight)
    drawn = place(weight, torch.from_numpy(batch.uniform).to(device), of_blocks)
    left, attempt = np.flatnonzero(batch.top_p < 1), 0
    while len(left) and attempt < MOST_TRIES:
        attempt += 1
        index = torch.from_numpy(left).to(device)
        inside = _in_top_p(logits, weight, of_blocks, drawn, index, _column(batch.top_p[left], device)[:, 0])
        left = left[~inside.cpu().numpy()]
        if len(left) and attempt < MOST_TRIES:
            index = torch.from_numpy(left).to(device)
            again = torch.from_numpy(_next_uniform(batch.uniform[left], attempt)).to(device)
            drawn[index] = place(weight[index], again, of_blocks[index])
    if len(left):
        index = torch.from_numpy(left).to(device)
        drawn[index] = logits.best()[index]
    return drawn


def _weight(logits: RowBlocks, batch: SamplingBatch) -> Tensor:
    """float64 [R, vocab] in [0, 1], 1 for the best token."""
    best = logits.values.amax(-1, keepdim=True)
    temperature = torch.from_numpy(batch.temperature).to(best.device)
    return (logits.values - best).div_(temperature[:, None]).to(torch.float64).exp_()


def _column(parameter: np.ndarray, device: torch.device) -> Tensor:
    """float64 [R, 1]."""
    return torch.from_numpy(parameter.astype(np.float64)).to(device)[:, None]


def _in_top_p(
    logits: RowBlocks, weight: Tensor, of_blocks: Tensor, drawn: Tensor, left: Tensor, top_p: Tensor
) -> Tensor:
    """bool [L]: of the rows `left`, whether the tokens before `drawn` leave room in their top_p [L]."""
    rows, ids = logits.rows(left), drawn[left]
    own = rows.values.gather(-1, ids[:, None])
    near = int((rows.maxima >= own).sum(-1).max())
    if near <= _NEAR_BEST:
        values, places = rows.block_values(rows.maxima.topk(near, dim=-1, sorted=False).indices)
        values, places = values.flatten(-2), places.flatten(-2)
        shares = weight[left[:, None], places]
    else:
        values, shares = rows.values, weight if len(left) == len(weight) else weight[left]
        places = torch.arange(values.shape[-1], device=values.device)
    earlier = (values > own) | ((values == own) & (places < ids[:, None]))
    before = torch.where(earlier, shares, 0.0).sum(dim=-1)
    return before < top_p * of_blocks[left].sum(dim=-1)


def _next_uniform(drawn: np.ndarray, attempt: int) -> np.ndarray:
    """float64 in [0, 1): further numbers of rows, with their first as a seed."""
    return np.array([uniform(seed, attempt - 1) for seed in (drawn * 2.0**53).astype(np.int64).tolist()])
