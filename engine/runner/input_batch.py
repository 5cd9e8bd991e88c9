"""From a planned batch to one packed pass: ids, positions, slots and which tokens want logits."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.scheduler.plan import ModelBatch
from engine.scheduler.sequence import Sequence
from kernels.contract import PassLayout


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One pass of one model, decode rows first."""

    ids: Tensor
    """int64 [T]."""
    layouts: list[PassLayout]
    """Of each pool of KV."""
    sampled: list[Sequence]
    """Sequences that reach their target in this pass, in the order of `logit_rows`."""
    logit_rows: Tensor
    """int64 [R], indices into the pass: of each such sequence's last token and the draft tokens behind it."""


def pack(batch: ModelBatch, block_size: int, device: torch.device) -> InputBatch:
    """Lay out a planned batch; block tables already cover every token of it, draft tokens too."""
    ids: list[int] = []
    positions: list[int] = []
    query_lens: list[int] = []
    context_lens: list[int] = []
    tables: list[list[list[int]]] = []
    """Of each sequence, its pages in each pool."""
    sampled: list[Sequence] = []
    logit_rows: list[int] = []
    spans = [(s, s.num_computed, 1, batch.drafts.get(s.sequence_id, [])) for s in batch.decode]
    spans += [(chunk.sequence, chunk.start, chunk.length, []) for chunk in batch.prefill]
    for sequence, start, length, draft in spans:
        known = start + length
        end = known + len(draft)
        ids += sequence.token_ids[start:known]
        ids += draft
        positions += range(start, end)
        query_lens.append(end - start)
        context_lens.append(end)
        tables.append([sequence.block_table, *(window.pages for window in sequence.windows)])
        if known == sequence.num_target:
            sampled.append(sequence)
            logit_rows += range(len(ids) - len(draft) - 1, len(ids))
    places = torch.tensor(positions, device=device)
    layouts = [
        PassLayout(
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=list(own),
            num_decode=len(batch.decode),
            positions=places,
            slot_mapping=torch.tensor(_slots(own, query_lens, context_lens, block_size), device=device),
        )
        for own in zip(*tables, strict=True)
    ]
    return InputBatch(
        ids=torch.tensor(ids, device=device),
        layouts=layouts,
        sampled=sampled,
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
    )


def _slots(
    tables: Iterable[list[int]], query_lens: list[int], context_lens: list[int], block_size: int
) -> list[int]:
    """Where the new tokens of all sequences are written."""
    slots: list[int] = []
    for table, count, end in zip(tables, query_lens, context_lens, strict=True):
        slots += [table[p // block_size] * block_size + p % block_size for p in range(end - count, end)]
    return slots


def whole_prompt(token_ids: list[int], block_size: int, device: torch.device) -> InputBatch:
    """One prompt in blocks 1, 2, …, with logits for every token."""
    count = len(token_ids)
    blocks = (count + block_size - 1) // block_size
    positions = torch.arange(count, device=device)
    layout = PassLayout(
        query_lens=[count],
        context_lens=[count],
        block_tables=[list(range(1, blocks + 1))],
        num_decode=0,
        positions=positions,
        slot_mapping=positions + block_size,
    )
    return InputBatch(torch.tensor(token_ids, device=device), [layout], [], positions)
