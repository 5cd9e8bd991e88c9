"""Rows of a pass that computes drafts: a row of its own for each token, beside its sequence's row.

A sequence with drafts has several tokens in a pass. Each is a decode row: it knows the tokens up to
its own, samples by the sequence's parameters what follows, and ends by no rule; the host decides which
of the sampled ids count. The sequence's own row stays as it was.
"""

import triton
import triton.language as tl

from kernels.state.decode_state import (
    ACTIVE,
    FIELDS,
    ID,
    LENGTH,
    STOPS,
    TARGET,
    DecodeState,
    PassBuffers,
)
from kernels.state.sampler_state import FIELDS as SAMPLER_FIELDS
from kernels.state.sampler_state import SamplerState

_FAR = tl.constexpr((1 << 31) - 1)


def set_draft_rows(state: DecodeState, sampler: SamplerState, buffers: PassBuffers) -> None:
    """Write the draft rows that a pass names in `drafts`: token i's is `first_draft_row` + i.

    Their sequences' rows hold sampling parameters, without edits, and block tables. Launches nothing
    for a pass without drafts.
    """
    if not buffers.tables.shares_kv:
        return
    tokens = buffers.tables.num_tokens
    _set_draft_rows[(tokens,)](
        state.rows,
        state.block_tables,
        sampler.rows,
        buffers.drafts,
        state.first_draft_row,
        tokens,
        MAX_BLOCKS=state.block_tables.shape[1],
        WIDTH=256,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["first_row", "num_tokens"])
def _set_draft_rows(
    rows: tl.tensor,
    block_tables: tl.tensor,
    sampler_rows: tl.tensor,
    drafts: tl.tensor,
    first_row: tl.tensor,
    num_tokens: tl.tensor,
    MAX_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (T,): one program per token; 8 bytes per entry of its block table."""
    token = tl.program_id(0)
    source = tl.load(drafts + token).to(tl.int64)
    if source < 0:
        return
    target = (first_row + token).to(tl.int64)
    row = rows + target * FIELDS
    tl.store(row + ID, tl.load(drafts + num_tokens + token))
    tl.store(row + LENGTH, tl.load(drafts + 2 * num_tokens + token))
    tl.store(row + TARGET, _FAR)
    tl.store(row + ACTIVE, 1)
    tl.store(row + STOPS, 0)
    field = tl.arange(0, SAMPLER_FIELDS)
    parameters = tl.load(sampler_rows + source * SAMPLER_FIELDS + field)
    tl.store(sampler_rows + target * SAMPLER_FIELDS + field, parameters)
    for first in range(0, MAX_BLOCKS, WIDTH):
        entry = first + tl.arange(0, WIDTH)
        inside = entry < MAX_BLOCKS
        block = tl.load(block_tables + source * MAX_BLOCKS + entry, mask=inside, other=0)
        tl.store(block_tables + target * MAX_BLOCKS + entry, block, mask=inside)
