"""Passes that are likely to come, run while nobody waits: recorded, checked and timed.

The first pass of a shape takes two to three times as long as the next ones, and the first of a model waits
for compilers and for weights that no cache holds. What they write to KV nobody reads.
"""

import time
from collections.abc import Generator, Iterator
from itertools import product

import torch

from engine.model.decoder import Decoder
from engine.runner.base import PassNotes
from engine.runner.input_batch import InputBatch
from engine.runner.model_kv import ModelKV
from engine.runner.recorded.passes import RecordedPasses
from engine.scheduler.buckets import CHUNK_STEP, LONG_STEP
from engine.scheduler.cost_model import Load, chunk_pairs
from kernels.contract import PassLayout

ROWS = 8
"""Sequences that decode, at most; more chats than these are seldom written at once on a processor."""
LONG_MS = 40.0
"""Of one row's pass: recording such a one adds little to it, and a message would wait for a rehearsal."""


def rehearsal(
    recorded: RecordedPasses, decoder: Decoder, kv: ModelKV, notes: PassNotes
) -> Generator[None, None, None]:
    """A few passes a step, of a slow model one; what they took is noted."""

    def run(rows: int, chunk: int, record: bool) -> float | None:
        """Milliseconds; None where it was to be recorded and cannot be."""
        packed = _pass(rows, chunk, decoder.ops.block_size, kv.num_pools)
        layouts, before = kv.by_group(packed.layouts), time.perf_counter()
        if not record:
            decoder.forward(packed.ids, layouts, kv.groups, packed.logit_rows)
        elif recorded.logits(packed, layouts, kv.groups) is None:
            return None
        return (time.perf_counter() - before) * 1e3

    def note(rows: int, chunk: int, ms: float | None) -> None:
        if ms is not None:
            notes.timings.append((Load(rows, rows, chunk, chunk_pairs(1, chunk)), ms))

    if not recorded.can_record:
        return
    run(1, 0, record=False)
    yield
    ms = run(1, 0, record=False)
    note(1, 0, ms)
    if ms is None or ms > LONG_MS:
        return
    for rows, chunk in _shapes():
        yield
        if run(rows, chunk, record=True) is not None:
            note(rows, chunk, run(rows, chunk, record=True))


def _shapes() -> Iterator[tuple[int, int]]:
    """(rows, tokens of a chunk), those of few rows first."""
    chunks = range(0, LONG_STEP + 1, CHUNK_STEP)
    return product(range(1, ROWS + 1), chunks)


def _pass(rows: int, chunk: int, block_size: int, pools: int) -> InputBatch:
    """In the scratch block. Rows write to its end and read its first token, which none of them writes."""
    query_lens = [1] * rows + [chunk] * (chunk > 0)
    places = [0] * rows + list(range(1, chunk + 1))
    slots = [block_size - 1] * rows + [place % block_size for place in places[rows:]]
    layout = PassLayout(
        query_lens=query_lens,
        context_lens=[1] * rows + [1 + chunk] * (chunk > 0),
        block_tables=[[0] * (1 + chunk // block_size) for _ in query_lens],
        num_decode=rows,
        positions=torch.tensor(places),
        slot_mapping=torch.tensor(slots),
    )
    ids = torch.zeros(len(places), dtype=torch.int64)
    return InputBatch(ids, [layout] * pools, [], torch.arange(rows))
