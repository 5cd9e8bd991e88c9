"""Causal attention over paged KV in plain torch: the definition, and what CPUs run.

A pass is planned once for all layers. Decode rows with short contexts are gathered into one padded
batch; a decode row with a long context, and every prefill chunk, is computed by itself, as a view
where its blocks are contiguous. This is the one place where a loop over sequences is allowed.

Padding is masked before the product with V: a gathered slot may never have been written.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import PassLayout
from kernels.reference.paged_kv import LayerKV

GATHER_LIMIT = 192
"""Decode rows with at most this many context tokens are gathered into one batch.

Gathering copies the context once per layer; a row by itself costs three more calls. Measured on two
AVX-512 cores with 8 rows of 8 heads: equal near 200 tokens.
"""


@dataclass(slots=True)
class GatheredRows:
    """Decode rows computed together: `rows` of the pass, padded to `length` slots each."""

    rows: Tensor | None
    """int64 [B], rows of the pass, or None when they are the leading rows 0..B-1."""
    count: int
    length: int
    slots: Tensor
    """int64 [B * length], scratch slots behind each context's end."""
    mask: Tensor
    """[1, B, 1, length], 0 or -inf."""


FEW_KEYS = 1024
"""A sequence that sees fewer is computed by `SHORT_RUN` queries at a time, others by `LONG_RUN`.

torch computes most of what a causal mask hides. Measured on one and two AVX2 cores, heads of 64 and 128: a
prompt of 512 tokens takes 0.65 to 0.75 of its time in runs of 64, behind 3,584 others as long in runs of 256
and 1.15 times as long in shorter ones.
"""
SHORT_RUN = 64
LONG_RUN = 256


@dataclass(slots=True)
class QueryRun:
    """Neighbouring queries of a sequence and the keys that they see, of those that the sequence sees."""

    queries: slice
    keys: slice
    mask: Tensor | None
    """[queries, keys], 0 or -inf; None where query and key of one place are the same token."""


@dataclass(slots=True)
class SingleSequence:
    """One sequence's tokens [start, start + query_len) of the pass over its own context."""

    start: int
    query_len: int
    run: slice | None
    """Slots as a contiguous run, or None: gathered by `slots`."""
    slots: Tensor | None
    runs: list[QueryRun]
    """Empty for a single row."""


@dataclass(slots=True)
class AttentionPlan:
    """How one pass's attention is computed, shared by all layers."""

    gathered: GatheredRows | None
    singles: list[SingleSequence]


def plan_attention(layout: PassLayout, block_size: int, like: Tensor, window: int = 0) -> AttentionPlan:
    """Group the pass's sequences; masks get the dtype and device of `like`.

    window: a token sees the last so many tokens, itself included; 0 sees all.
    """
    short = [
        i
        for i in range(layout.num_decode)
        if layout.query_lens[i] == 1 and _visible(layout, i, window) <= GATHER_LIMIT
    ]
    gathered = _gather_rows(layout, short, block_size, like, window) if short else None
    together = set(short)
    singles = []
    start = 0
    for i, query_len in enumerate(layout.query_lens):
        if i not in together:
            singles.append(_single(layout, i, start, block_size, like, window))
        start += query_len
    return AttentionPlan(gathered, singles)


def attend(
    q: Tensor,
    layer: LayerKV,
    kv_heads: int,
    plan: AttentionPlan,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [T, q_heads, head_dim] → [T, q_heads * head_dim].

    sinks float32 [q_heads]: scores that take weight and give no value.
    """
    tokens, heads, dim = q.shape
    scores = _Scores(kv_heads, heads // kv_heads, scale, softcap, sinks)
    if plan.gathered is not None and not plan.singles:
        return _attend_gathered(q, layer, plan.gathered, scores)
    out = torch.empty(tokens, heads * dim, dtype=q.dtype, device=q.device)
    if plan.gathered is not None:
        rows = plan.gathered.rows
        index = slice(0, plan.gathered.count) if rows is None else rows
        out[index] = _attend_gathered(q[index], layer, plan.gathered, scores)
    for single in plan.singles:
        span = slice(single.start, single.start + single.query_len)
        out[span] = _attend_single(q[span], layer, single, scores)
    return out


@dataclass(frozen=True, slots=True)
class _Scores:
    """How queries and keys of one layer meet."""

    kv_heads: int
    groups: int
    scale: float
    softcap: float
    sinks: Tensor | None

    @property
    def plain(self) -> bool:
        """Whether torch's own attention computes them."""
        return not self.softcap and self.sinks is None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(capped q·k + mask) · v; q [A, B, queries, dim], keys and values the same.

        kv_heads are A or B, the other is 1 or the rows; queries are tokens of each group in turn.
        """
        if self.plain:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=self.scale)
        scores = (q @ keys.transpose(-1, -2)).mul_(self.scale)
        if self.softcap:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if mask is not None:
            scores += mask
        if self.sinks is None:
            return scores.softmax(-1) @ values
        sinks = self.sinks.to(scores).view(self.kv_heads, self.groups)
        sinks = sinks.repeat_interleave(q.shape[2] // self.groups, dim=1)
        sinks = sinks[:, None] if q.shape[0] == self.kv_heads else sinks[None]
        weighed = torch.cat([scores, sinks[..., None].expand(*scores.shape[:3], 1)], dim=-1).softmax(-1)
        return weighed[..., :-1] @ values


def _visible(layout: PassLayout, i: int, window: int) -> int:
    """Tokens of sequence i's context that some token of the pass sees."""
    context = layout.context_lens[i]
    return min(context, window + layout.query_lens[i] - 1) if window else context


def _slot_list(table: list[int], first: int, end: int, block_size: int) -> list[int]:
    """Slots of positions [first, end)."""
    before = first // block_size
    blocks = table[before : (end + block_size - 1) // block_size]
    slots = [block * block_size + offset for block in blocks for offset in range(block_size)]
    return slots[first - before * block_size : end - before * block_size]


def _contiguous_run(table: list[int], first: int, end: int, block_size: int) -> slice | None:
    before, last = first // block_size, (end + block_size - 1) // block_size
    if any(table[i] != table[before] + i - before for i in range(before + 1, last)):
        return None
    start = table[before] * block_size + first % block_size
    return slice(start, start + end - first)


def _gather_rows(
    layout: PassLayout, rows: list[int], block_size: int, like: Tensor, window: int
) -> GatheredRows:
    lengths = [_visible(layout, i, window) for i in rows]
    length = max(lengths)
    slots: list[int] = []
    for i, visible in zip(rows, lengths, strict=True):
        end = layout.context_lens[i]
        slots += _slot_list(layout.block_tables[i], end - visible, end, block_size)
        slots += [0] * (length - visible)
    valid = torch.arange(length)[None] < torch.tensor(lengths)[:, None]
    mask = torch.zeros(len(rows), length).masked_fill_(~valid, float("-inf"))
    starts = list(accumulate(layout.query_lens, initial=0))
    tokens = [starts[i] for i in rows]
    leading = tokens == list(range(len(rows)))
    return GatheredRows(
        rows=None if leading else torch.tensor(tokens, device=like.device),
        count=len(rows),
        length=length,
        slots=torch.tensor(slots, device=like.device),
        mask=mask[None, :, None].to(like),
    )


def _single(
    layout: PassLayout, i: int, start: int, block_size: int, like: Tensor, window: int
) -> SingleSequence:
    query_len, context = layout.query_lens[i], layout.context_lens[i]
    table = layout.block_tables[i]
    visible = _visible(layout, i, window)
    first = context - visible
    run = _contiguous_run(table, first, context, block_size)
    slots = None
    if run is None:
        slots = torch.tensor(_slot_list(table, first, context, block_size), device=like.device)
    return SingleSequence(start, query_len, run, slots, _query_runs(query_len, visible, window, like))


def _query_runs(queries: int, visible: int, window: int, like: Tensor) -> list[QueryRun]:
    """The last `queries` tokens of `visible` ones, and which of these each run of them sees."""
    if queries == 1:
        return []
    length = SHORT_RUN if visible < FEW_KEYS else LONG_RUN
    if like.device.type != "cpu":
        length = queries
    runs = []
    for first in range(0, queries, length):
        end = min(queries, first + length)
        newest = visible - queries + end
        oldest = max(0, newest - (end - first) + 1 - window) if window else 0
        seen = newest - oldest
        whole = seen == end - first and (not window or seen <= window)
        mask = None if whole else _mask(end - first, seen, window, like)
        runs.append(QueryRun(slice(first, end), slice(oldest, newest), mask))
    return runs


def _mask(queries: int, visible: int, window: int, like: Tensor) -> Tensor:
    """[queries, visible] of the last `queries` tokens of `visible` ones: 0, or -inf where one is not seen."""
    key = torch.arange(visible, device=like.device)[None]
    newest = torch.arange(visible - queries, visible, device=like.device)[:, None]
    hidden = key > newest
    if window:
        hidden |= key <= newest - window
    return like.new_zeros(queries, visible).masked_fill_(hidden, float("-inf"))


def _attend_gathered(q: Tensor, layer: LayerKV, rows: GatheredRows, scores: _Scores) -> Tensor:
    count, dim, kv_heads = rows.count, q.shape[-1], scores.kv_heads
    kv = layer.read(rows.slots, q.dtype).view(2 * kv_heads, count, rows.length, dim)
    grouped = q.view(count, kv_heads, scores.groups, dim).transpose(0, 1)
    out = scores.attend(grouped, kv[:kv_heads], kv[kv_heads:], rows.mask)
    return out.transpose(0, 1).reshape(count, kv_heads * scores.groups * dim)


def _attend_single(q: Tensor, layer: LayerKV, single: SingleSequence, scores: _Scores) -> Tensor:
    tokens, heads, dim = q.shape
    slots = single.slots if single.run is None else single.run
    assert slots is not None
    kv = layer.read(slots, q.dtype)[None]
    keys, values = kv[:, : scores.kv_heads], kv[:, scores.kv_heads :]
    if tokens == 1:
        # A row's groups stand as queries: expanding K and V to all heads would copy the context.
        grouped = q.view(1, scores.kv_heads, scores.groups, dim)
        return scores.attend(grouped, keys, values, None).view(1, heads * dim)
    queries = q.transpose(0, 1)[None]
    out = q.new_empty(tokens, heads, dim)
    for run in single.runs:
        some = queries[:, :, run.queries], keys[:, :, run.keys], values[:, :, run.keys]
        out[run.queries] = _attend_run(*some, run.mask, scores).transpose(0, 1)
    return out.view(tokens, heads * dim)


def _attend_run(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scores: _Scores) -> Tensor:
    """q [1, q_heads, queries, dim] → [q_heads, queries, dim]."""
    if scores.plain:
        made = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=mask is None, scale=scores.scale, enable_gqa=True
        )
        return made[0]
    _, heads, count, dim = q.shape
    grouped = q.reshape(1, scores.kv_heads, scores.groups * count, dim)
    mask = _mask(count, count, 0, q) if mask is None else mask
    made = scores.attend(grouped, keys, values, mask.repeat(scores.groups, 1))
    return made.view(heads, count, dim)
