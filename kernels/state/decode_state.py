"""Tables of a pass computed from row state on the device: a decode tick needs nothing from the host.

A captured graph is `fill_pass` → model → sampler → `advance`. Replayed several times in a row it
decodes as many tokens: `advance` puts the sampled id where the next `fill_pass` finds it, and rows
that ended write to the scratch block and report nothing until the host drops them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.activations import PassTables
from kernels.cuda.early import early, let_next_start, wait_for_inputs
from kernels.state.sampler_state import SamplerState, count_token

ID = tl.constexpr(0)
LENGTH = tl.constexpr(1)
TARGET = tl.constexpr(2)
ACTIVE = tl.constexpr(3)
STOPS = tl.constexpr(4)
FIELDS = tl.constexpr(8)
MAX_END_IDS = 16
ENDED = -1
"""Reported for a row that had ended before the tick, and for padding."""
NOT_FINITE = -2
"""Reported for a row whose logits were no numbers; the row ends with it."""
_ALIGN = 16


@dataclass(frozen=True, slots=True)
class DecodeState:
    """What the device remembers of each row between ticks; the addresses never change."""

    rows: Tensor
    """int32 [N, 8] of max_rows rows and draft_rows behind them: last known id (not computed yet), known
    tokens including it, length at which the row ends, whether it goes on, whether end-of-text ids end
    it; the rest is unused."""
    block_tables: Tensor
    """int32 [N, pools * max_blocks], pool after pool; 0, the scratch block, where no block is given.

    Layers with pages of their own numbers have pools of their own."""
    end_ids: Tensor
    """int32 [16], padded with -1."""
    tick: Tensor
    """int32 [1], ticks that have advanced."""
    ring: Tensor
    """int32 [depth, 2 * max_rows]: what the sampled rows of tick t gave, in the order of that pass, at
    t % depth: an id, `ENDED` or `NOT_FINITE`. A pass has as many places for decode rows as for chunks.
    In the host's memory, which the device writes to: who has waited for a tick reads it there."""
    block_size: int
    pools: int = 1
    """Tables of a row."""
    draft_rows: int = 0
    """The last rows, which passes with drafts set anew each time (`kernels.state.draft_rows`)."""

    @property
    def first_draft_row(self) -> int:
        """Rows before it belong to sequences."""
        return self.rows.shape[0] - self.draft_rows

    @classmethod
    def create(
        cls,
        max_rows: int,
        max_blocks: int,
        block_size: int,
        end_ids: Sequence[int],
        depth: int,
        device: torch.device | str,
        draft_rows: int = 0,
        pools: int = 1,
    ) -> "DecodeState":
        """All rows ended, all tables in the scratch block. At most 16 end-of-text ids."""
        if len(end_ids) > MAX_END_IDS:
            raise ValueError(f"{len(end_ids)} end-of-text ids; at most {MAX_END_IDS} fit")
        on_gpu = torch.device(device).type == "cuda"
        padded = list(end_ids) + [-1] * (MAX_END_IDS - len(end_ids))
        rows = max_rows + draft_rows
        return cls(
            rows=torch.zeros(rows, FIELDS.value, dtype=torch.int32, device=device),
            block_tables=torch.zeros(rows, pools * _aligned(max_blocks), dtype=torch.int32, device=device),
            end_ids=torch.tensor(padded, dtype=torch.int32, device=device),
            tick=torch.zeros(1, dtype=torch.int32, device=device),
            ring=torch.full((depth, 2 * max_rows), ENDED, dtype=torch.int32, pin_memory=on_gpu),
            block_size=block_size,
            pools=pools,
            draft_rows=draft_rows,
        )

    @property
    def max_blocks(self) -> int:
        """Entries of a row's table of one pool."""
        return self.block_tables.shape[1] // self.pools

    def set_row(self, slot: int, last_id: int, length: int, target: int, ends_at_end_ids: bool) -> None:
        """Start or continue a row: `length` known tokens, the last of them `last_id`.

        It ends when `target` tokens are known. Ordered in the current stream; does not wait.
        """
        fields = [last_id, length, target, 1, int(ends_at_end_ids)]
        fields += [0] * (FIELDS.value - len(fields))
        self.rows[slot].copy_(torch.tensor(fields, dtype=torch.int32), non_blocking=True)

    def set_blocks(self, slot: int, first: int, blocks: Sequence[int], pool: int = 0) -> None:
        """Entries `[first, first + len(blocks))` of a row's table of a pool, in stream order."""
        entries = torch.tensor(blocks, dtype=torch.int32)
        start = pool * self.max_blocks + first
        self.block_tables[slot, start : start + len(blocks)].copy_(entries, non_blocking=True)


@dataclass(frozen=True, slots=True)
class PassBuffers:
    """The fixed addresses of one captured shape: what the host uploads, and the tables made of it.

    Uploading is one copy into `inputs`, of which the views below are parts. A decode pass uploads
    only when its rows change.
    """

    inputs: Tensor
    """int32; every other input is a view of it."""
    slots: Tensor
    """int32 [S], row of the decode state of each sequence; -1 for padding."""
    ends: Tensor
    """int32 [S]: 0 for a decode row; of a chunk the context length at its end."""
    ids: Tensor
    """int32 [T]: uploaded for chunks; `fill_pass` writes those of decode rows and of padding."""
    logit_rows: Tensor
    """int32 [R], tokens of the pass whose logits are wanted."""
    sampled_slots: Tensor
    """int32 [R], their rows of the decode state; -1 for padding."""
    drafts: Tensor
    """int32 [3 T], or [0] of a pass without drafts: of each token that has a draft row its sequence's
    row (else -1), the token's id, and the tokens known with it."""
    pools: tuple[PassTables, ...]
    """Of each pool of KV; they differ in block tables and slots alone. `query_starts` is an input; the rest
    is written by `fill_pass`."""

    @property
    def tables(self) -> PassTables:
        """Those of the first pool."""
        return self.pools[0]

    @classmethod
    def create(
        cls,
        state: DecodeState,
        num_decode: int,
        num_chunks: int,
        num_tokens: int,
        num_sampled: int,
        drafts: bool = False,
    ) -> "PassBuffers":
        """Padding only: one token for each decode row, none for a chunk, no row sampled."""
        sequences = num_decode + num_chunks
        drafted = 3 * num_tokens * drafts
        sizes = (sequences, sequences, sequences + 1, num_tokens, num_sampled, num_sampled, drafted)
        padded = [_aligned(size) for size in sizes]
        inputs = state.rows.new_zeros(sum(padded))
        parts = [part[:size] for part, size in zip(inputs.split(padded), sizes, strict=True)]
        slots, ends, starts, ids, logit_rows, sampled_slots, sources = parts
        slots.fill_(-1)
        sources.fill_(-1)
        sampled_slots.fill_(-1)
        starts.copy_(torch.arange(sequences + 1).clamp(max=num_decode))
        width = state.max_blocks
        block_tables = state.block_tables.new_zeros(sequences, state.pools * width)
        kv_slots = state.rows.new_zeros(state.pools, _aligned(num_tokens), dtype=torch.int64)
        first = PassTables(
            query_starts=starts,
            context_lens=state.rows.new_zeros(sequences),
            block_tables=block_tables[:, :width],
            positions=state.rows.new_zeros(num_tokens),
            slots=kv_slots[0, :num_tokens],
            num_decode=num_decode,
            num_tokens=num_tokens,
            shares_kv=drafts,
        )
        pools = [first]
        for pool in range(1, state.pools):
            own = block_tables[:, pool * width : (pool + 1) * width]
            pools.append(replace(first, block_tables=own, slots=kv_slots[pool, :num_tokens]))
        return cls(inputs, slots, ends, ids, logit_rows, sampled_slots, sources, tuple(pools))


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def fill_pass(state: DecodeState, buffers: PassBuffers) -> None:
    """Write context lengths, block tables, positions, slots and ids of a pass, decode or mixed.

    A chunk's row learns its length. Rows that ended and padding get context 0, position 0, id 0 and
    a slot in block 0. Slots of a pass are distinct.
    """
    tables = buffers.tables
    sequences = buffers.slots.shape[0]
    _fill_pass[(sequences + 1,)](
        state.rows,
        state.block_tables,
        buffers.slots,
        buffers.ends,
        buffers.ids,
        tables.query_starts,
        tables.context_lens,
        tables.block_tables,
        tables.positions,
        tables.slots,
        sequences,
        tables.num_tokens,
        _aligned(tables.num_tokens),
        MAX_BLOCKS=state.max_blocks,
        POOLS=state.pools,
        BLOCK_SIZE=state.block_size,
        WIDTH=256,
        num_warps=4,
        **early(state.rows, starts_early=False),
    )


def advance(
    state: DecodeState, slots: Tensor, sampled: Tensor, finite: Tensor, sampler: SamplerState | None = None
) -> None:
    """Take the sampled ids as the rows' last ones, and report them in the ring.

    slots int32 [R] rows of the state, -1 for padding; sampled int32 [R]; finite int32 [R]. A row ends
    with an end-of-text id, at its target length and with logits that are no numbers. With a sampler
    its token counts follow. Raises ValueError for more rows than a tick can report.
    """
    count = slots.shape[0]
    if count > state.ring.shape[1]:
        raise ValueError(f"{count} sampled rows; {state.ring.shape[1]} can be reported")
    _advance[(1,)](
        state.rows,
        slots,
        sampled,
        finite,
        state.end_ids,
        state.tick,
        state.ring,
        state.rows if sampler is None else sampler.rows,
        state.rows if sampler is None else sampler.counts,
        count,
        DEPTH=state.ring.shape[0],
        RING_WIDTH=state.ring.shape[1],
        VOCAB=0 if sampler is None else sampler.counts.shape[1],
        END_IDS=MAX_END_IDS,
        BLOCK=triton.next_power_of_2(count),
        num_warps=4,
        **early(state.rows),
    )


@triton.jit(do_not_specialize=["num_sequences", "num_tokens", "pool_slots"])
def _fill_pass(
    rows: tl.tensor,
    all_tables: tl.tensor,
    slots: tl.tensor,
    ends: tl.tensor,
    ids: tl.tensor,
    starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    positions: tl.tensor,
    kv_slots: tl.tensor,
    num_sequences: tl.tensor,
    num_tokens: tl.tensor,
    pool_slots: tl.tensor,
    MAX_BLOCKS: tl.constexpr,
    POOLS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (S + 1,): one program per sequence, the last one for padding tokens.

    Moves 8 bytes per table entry, 12 per token and 8 more for each pool.
    """
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    sequence = tl.program_id(0)
    lane = tl.arange(0, WIDTH)
    begin = tl.load(starts + sequence)
    if sequence == num_sequences:
        for first in range(begin, num_tokens, WIDTH):
            token = first + lane
            tl.store(ids + token, 0, mask=token < num_tokens)
            tl.store(positions + token, 0, mask=token < num_tokens)
            for pool in tl.static_range(POOLS):
                tl.store(kv_slots + pool * pool_slots + token, 0, mask=token < num_tokens)
    else:
        end = tl.load(starts + sequence + 1)
        slot = tl.load(slots + sequence).to(tl.int64)
        chunk_end = tl.load(ends + sequence)
        row = rows + tl.maximum(slot, 0) * FIELDS
        source = all_tables + tl.maximum(slot, 0) * (POOLS * MAX_BLOCKS)
        goes_on = (slot >= 0) & (tl.load(row + ACTIVE) != 0)
        length = tl.where(goes_on, tl.load(row + LENGTH), 0)
        is_chunk = (slot >= 0) & (chunk_end > 0)
        if is_chunk:
            length = chunk_end
            tl.store(row + LENGTH, length)
        elif begin < end:
            tl.store(ids + begin, tl.where(goes_on, tl.load(row + ID), 0))
        tl.store(context_lens + sequence, length)
        target = tables + sequence.to(tl.int64) * (POOLS * MAX_BLOCKS)
        used = tl.where(length > 0, POOLS * MAX_BLOCKS, 0)
        for first in range(0, POOLS * MAX_BLOCKS, WIDTH):
            entry = first + lane
            block = tl.load(source + entry, mask=entry < used, other=0)
            tl.store(target + entry, block, mask=entry < POOLS * MAX_BLOCKS)
        known_end = tl.where(length > 0, end, begin)
        for first in range(begin, end, WIDTH):
            token = first + lane
            position = tl.maximum(length - end + token, 0)
            known = token < known_end
            tl.store(positions + token, tl.where(known, position, 0), mask=token < end)
            for pool in tl.static_range(POOLS):
                entry = pool * MAX_BLOCKS + position // BLOCK_SIZE
                block = tl.load(source + entry, mask=known, other=0).to(tl.int64)
                kv_slot = block * BLOCK_SIZE + position % BLOCK_SIZE
                place = kv_slots + pool * pool_slots + token
                tl.store(place, tl.where(known, kv_slot, 0), mask=token < end)


@triton.jit(do_not_specialize=["count"])
def _advance(
    rows: tl.tensor,
    slots: tl.tensor,
    sampled: tl.tensor,
    finite: tl.tensor,
    end_ids: tl.tensor,
    tick: tl.tensor,
    ring: tl.tensor,
    sampler_rows: tl.tensor,
    counts: tl.tensor,
    count: tl.tensor,
    DEPTH: tl.constexpr,
    RING_WIDTH: tl.constexpr,
    VOCAB: tl.constexpr,
    END_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (1,): one lane per sampled row; about 60 bytes a row."""
    wait_for_inputs(EARLY)
    lane = tl.arange(0, BLOCK)
    inside = lane < count
    slot = tl.load(slots + lane, mask=inside, other=-1).to(tl.int64)
    row = rows + tl.maximum(slot, 0) * FIELDS
    goes_on = (slot >= 0) & (tl.load(row + ACTIVE, mask=slot >= 0, other=0) != 0)
    chosen = tl.load(sampled + lane, mask=inside, other=0)
    is_finite = tl.load(finite + lane, mask=inside, other=1) != 0
    now = tl.load(tick)
    report = tl.where(goes_on, tl.where(is_finite, chosen, -2), -1)
    tl.store(ring + (now % DEPTH) * RING_WIDTH + lane, report, mask=inside)
    taken = goes_on & is_finite
    length = tl.load(row + LENGTH, mask=goes_on, other=0) + 1
    ids = tl.load(end_ids + tl.arange(0, END_IDS))
    at_end = tl.sum((chosen[:, None] == ids[None, :]).to(tl.int32), axis=1) > 0
    at_end &= tl.load(row + STOPS, mask=goes_on, other=0) != 0
    ended = at_end | (length >= tl.load(row + TARGET, mask=goes_on, other=0)) | (is_finite == 0)
    tl.store(row + ID, chosen, mask=taken)
    tl.store(row + LENGTH, length, mask=taken)
    tl.store(row + ACTIVE, 0, mask=goes_on & ended)
    if VOCAB > 0:
        count_token(sampler_rows, counts, slot, chosen, taken, VOCAB)
    tl.debug_barrier()
    tl.store(tick, now + 1)
