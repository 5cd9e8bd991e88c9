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


@dataclass(slots=True)
class SingleSequence:
    """One sequence's tokens [start, start + query_len) of the pass over its own context."""

    start: int
    query_len: int
    run: slice | None
    """Slots as a contiguous run, or None: gathered by `slots`."""
    slots: Tensor | None
    mask: Tensor | None
    """[query_len, context], 0 or -inf; None for a single row or a whole prompt."""


@dataclass(slots=True)
class AttentionPlan:
    """How one pass's attention is computed, shared by all layers."""

    gathered: GatheredRows | None
    singles: list[SingleSequence]


def plan_attention(layout: PassLayout, block_size: int, like: Tensor) -> AttentionPlan:
    """Group the pass's sequences; masks get the dtype and device of `like`."""
    short = [
        i
        for i in range(layout.num_decode)
        if layout.query_lens[i] == 1 and layout.context_lens[i] <= GATHER_LIMIT
    ]
    gathered = _gather_rows(layout, short, block_size, like) if short else None
    together = set(short)
    singles = []
    start = 0
    for i, query_len in enumerate(layout.query_lens):
        if i not in together:
            singles.append(_single(layout, i, start, block_size, like))
        start += query_len
    return AttentionPlan(gathered, singles)


def attend(q: Tensor, layer: Tensor, kv_heads: int, plan: AttentionPlan, scale: float) -> Tensor:
    """q [T, q_heads, head_dim], layer [2 * kv_heads, slots, head_dim] → [T, q_heads * head_dim]."""
    tokens, heads, dim = q.shape
    groups = heads // kv_heads
    if plan.gathered is not None and not plan.singles:
        return _attend_gathered(q, layer, kv_heads, groups, plan.gathered, scale)
    out = torch.empty(tokens, heads * dim, dtype=q.dtype, device=q.device)
    if plan.gathered is not None:
        rows = plan.gathered.rows
        index = slice(0, plan.gathered.count) if rows is None else rows
        out[index] = _attend_gathered(q[index], layer, kv_heads, groups, plan.gathered, scale)
    for single in plan.singles:
        span = slice(single.start, single.start + single.query_len)
        out[span] = _attend_single(q[span], layer, kv_heads, groups, single, scale)
    return out


def _slot_list(table: list[int], count: int, block_size: int) -> list[int]:
    blocks = (count + block_size - 1) // block_size
    slots = [block * block_size + offset for block in table[:blocks] for offset in range(block_size)]
    return slots[:count]


def _contiguous_run(table: list[int], count: int, block_size: int) -> slice | None:
    blocks = (count + block_size - 1) // block_size
    first = table[0]
    if any(table[i] != first + i for i in range(1, blocks)):
        return None
    return slice(first * block_size, first * block_size + count)


def _gather_rows(layout: PassLayout, rows: list[int], block_size: int, like: Tensor) -> GatheredRows:
    contexts = [layout.context_lens[i] for i in rows]
    length = max(contexts)
    slots: list[int] = []
    for i, context in zip(rows, contexts, strict=True):
        slots += _slot_list(layout.block_tables[i], context, block_size)
        slots += [0] * (length - context)
    valid = torch.arange(length)[None] < torch.tensor(contexts)[:, None]
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


def _single(layout: PassLayout, i: int, start: int, block_size: int, like: Tensor) -> SingleSequence:
    query_len, context = layout.query_lens[i], layout.context_lens[i]
    table = layout.block_tables[i]
    run = _contiguous_run(table, context, block_size)
    slots = None
    if run is None:
        slots = torch.tensor(_slot_list(table, context, block_size), device=like.device)
    mask = None
    if 1 < query_len < context:
        newest = torch.arange(context - query_len, context, device=like.device)
        hidden = torch.arange(context, device=like.device)[None] > newest[:, None]
        mask = like.new_zeros(query_len, context).masked_fill_(hidden, float("-inf"))
    return SingleSequence(start, query_len, run, slots, mask)


def _attend_gathered(
    q: Tensor, layer: Tensor, kv_heads: int, groups: int, rows: GatheredRows, scale: float
) -> Tensor:
    count, dim = rows.count, q.shape[-1]
    kv = layer.index_select(1, rows.slots).view(2 * kv_heads, count, rows.length, dim).to(q.dtype)
    grouped = q.view(count, kv_heads, groups, dim).transpose(0, 1)
    out = F.scaled_dot_product_attention(
        grouped, kv[:kv_heads], kv[kv_heads:], attn_mask=rows.mask, scale=scale
    )
    return out.transpose(0, 1).reshape(count, kv_heads * groups * dim)


def _attend_single(
    q: Tensor, layer: Tensor, kv_heads: int, groups: int, single: SingleSequence, scale: float
) -> Tensor:
    tokens, heads, dim = q.shape
    if single.run is not None:
        kv = layer[:, single.run]
    else:
        assert single.slots is not None
        kv = layer.index_select(1, single.slots)
    kv = kv.to(q.dtype)[None]
    keys, values = kv[:, :kv_heads], kv[:, kv_heads:]
    if tokens == 1:
        # A row's groups stand as queries: expanding K and V to all heads would copy the context.
        grouped = q.view(1, kv_heads, groups, dim)
        return F.scaled_dot_product_attention(grouped, keys, values, scale=scale).view(1, heads * dim)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys,
        values,
        attn_mask=single.mask,
        is_causal=single.mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).reshape(tokens, heads * dim)
