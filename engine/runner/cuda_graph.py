"""One shape of pass on a GPU: its buffers, and the graph that was captured of it.

A pass is bound to sizes alone (decode rows, chunks, tokens); what it computes is in its buffers and
in the decode state, so one graph serves every pass that is no larger. Padding writes to the scratch
block and is never reported.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.device.stream import DeviceStream
from engine.scheduler.buckets import (
    CHUNKS,
    DECODE_ROWS,
    MIXED_ROWS,
    PASS_TOKENS,
    VERIFY_TOKENS,
    round_up,
)
from engine.scheduler.plan import ModelBatch
from kernels.state.decode_state import DecodeState, PassBuffers


@dataclass(frozen=True, slots=True)
class PassSize:
    """Decode rows, chunks and tokens, padding included."""

    num_decode: int
    num_chunks: int
    num_tokens: int
    verifies: bool = False
    """Whether decode rows may be draft tokens, which read what rows before them write."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """The three as plain numbers."""
        return self.num_decode, self.num_chunks, self.num_tokens

    @property
    def captured(self) -> bool:
        """Whether passes of this shape are captured; larger ones are launched kernel by kernel."""
        return self.num_tokens <= max(DECODE_ROWS[-1], PASS_TOKENS[-1])

    @property
    def shares_kv(self) -> bool:
        """Whether tokens may read what others of the pass write, so that attention is as of prompts."""
        return self.verifies or self.num_chunks > 0

    @property
    def num_sampled(self) -> int:
        """Every decode row, and every chunk in case it completes."""
        return self.num_decode + self.num_chunks


FIRST_SIZES = (PassSize(1, 0, 1), PassSize(0, CHUNKS[0], PASS_TOKENS[0]))
"""What a short first answer needs."""
BESIDE = PassSize(MIXED_ROWS[1], CHUNKS[0], PASS_TOKENS[0])
"""What a second chat needs: a prompt is read beside rows that decode. Its kernels serve larger ones too."""
VERIFY_SIZES = tuple(PassSize(tokens, 0, tokens, verifies=True) for tokens in VERIFY_TOKENS)
WARM_SIZES = (
    *(PassSize(0, CHUNKS[0], tokens) for tokens in PASS_TOKENS[1:]),
    *(PassSize(rows, CHUNKS[0], 2 * PASS_TOKENS[-1]) for rows in MIXED_ROWS[:2]),
    *(PassSize(0, CHUNKS[0], times * PASS_TOKENS[-1]) for times in (4, 8)),
    BESIDE,
    *(PassSize(rows, 0, rows) for rows in DECODE_ROWS[1:]),
    *(PassSize(rows, CHUNKS[0], tokens) for rows in MIXED_ROWS[1:3] for tokens in PASS_TOKENS[1:]),
    PassSize(MIXED_ROWS[2], CHUNKS[0], PASS_TOKENS[0]),
    *VERIFY_SIZES,
    # Not captured: many prompts at once, and long ones beside rows that decode.
    *(PassSize(rows, CHUNKS[1], 2 * PASS_TOKENS[-1]) for rows in MIXED_ROWS),
    *(PassSize(rows, chunks, 8 * PASS_TOKENS[-1]) for rows in MIXED_ROWS[1:] for chunks in CHUNKS),
    PassSize(0, CHUNKS[1], 8 * PASS_TOKENS[-1]),
    PassSize(MIXED_ROWS[3], CHUNKS[0], 2 * PASS_TOKENS[-1]),
)
"""Shapes whose kernels are compiled behind the first answers, and captured while nothing runs."""


def captured_size(batch: ModelBatch) -> PassSize | None:
    """The smallest captured shape that holds a batch; None for one that is too large.

    Raises `ValueError` for draft tokens beside chunks, or more than are ever verified.
    """
    rows, chunks = len(batch.decode), len(batch.prefill)
    drafted = sum(map(batch.num_draft, batch.decode))
    if drafted:
        for verifying in VERIFY_SIZES:
            if rows + drafted <= verifying.num_tokens and not chunks:
                return verifying
        raise ValueError(
            f"{drafted} draft tokens behind {rows} rows, beside {chunks} chunks: no pass is for them"
        )
    if not chunks:
        size = round_up(rows, DECODE_ROWS)
        return None if size is None else PassSize(size, 0, size)
    decode, room = round_up(rows, MIXED_ROWS), round_up(chunks, CHUNKS)
    if decode is None or room is None:
        return None
    tokens = round_up(decode + sum(chunk.length for chunk in batch.prefill), PASS_TOKENS)
    return None if tokens is None else PassSize(decode, room, tokens)


def loose_size(batch: ModelBatch) -> PassSize:
    """The shape of a batch that runs without a graph.

    A little padding leaves few kinds of sizes, so that kernels compiled for one serve the next: compilers
    make another one where a size is 1 or no multiple of 16.
    """
    rows, chunks = len(batch.decode), len(batch.prefill)
    decode = round_up(rows, MIXED_ROWS) or rows
    tokens = decode + sum(chunk.length for chunk in batch.prefill)
    return PassSize(decode, round_up(chunks, CHUNKS) or chunks, -(-tokens // PASS_TOKENS[0]) * PASS_TOKENS[0])


class CUDAGraphPass:
    """Buffers of one shape; `launch` computes what was filled in."""

    def __init__(self, state: DecodeState, size: PassSize, stream: DeviceStream) -> None:
        self.size = size
        self._stream = stream
        self.buffers = PassBuffers.create(
            state, size.num_decode, size.num_chunks, size.num_tokens, size.num_sampled, size.verifies
        )
        self._first_draft_row = state.first_draft_row
        self._host = stream.host_tensor(self.buffers.inputs.numel())
        self._replay: Callable[[], None] | None = None
        self.logits: Tensor | None = None
        """What the pass gave, where its tokens are chosen apart; the next launch writes it anew."""
        self.has_run = False
        """Whether it was ever launched, so that its kernels are compiled."""
        parts = self.buffers
        self._slots = self._mirror(parts.slots)
        self._ends = self._mirror(parts.ends)
        self._starts = self._mirror(parts.tables.query_starts)
        self._ids = self._mirror(parts.ids)
        self._logit_rows = self._mirror(parts.logit_rows)
        self.sampled_slots = self._mirror(parts.sampled_slots)
        """Rows of the state that the batch last filled in samples, -1 for padding: on the host."""
        self._drafts = self._mirror(parts.drafts)

    def capture(self, compute: Callable[[PassBuffers], Tensor | None]) -> None:
        """Record `compute`; it must have run once, so that it is compiled."""
        self._replay = self._stream.capture(lambda: self._compute(compute))

    @property
    def captured(self) -> bool:
        """Whether a launch is one replay."""
        return self._replay is not None

    def fill(self, batch: ModelBatch, slots: list[int]) -> None:
        """Send a batch: its rows of the state, chunk by chunk its tokens, and which are sampled.

        The last launch of this pass must have been waited for.
        """
        size, rows = self.size, len(batch.decode)
        self._slots[:] = -1
        self._ends[:] = 0
        self.sampled_slots[:] = -1
        self._logit_rows[:] = 0
        if size.verifies:
            self._fill_rows(batch, slots)
        else:
            self._slots[:rows] = slots[:rows]
            self.sampled_slots[:rows] = slots[:rows]
        self._logit_rows[: size.num_decode] = np.arange(size.num_decode)
        self._starts[: size.num_decode + 1] = np.arange(size.num_decode + 1)
        token = size.num_decode
        for index, chunk in enumerate(batch.prefill):
            place, slot = size.num_decode + index, slots[rows + index]
            self._slots[place] = slot
            self._ends[place] = chunk.end
            self._starts[place] = token
            self._ids[token : token + chunk.length] = chunk.sequence.token_ids[chunk.start : chunk.end]
            token += chunk.length
            if chunk.completes:
                self.sampled_slots[place] = slot
                self._logit_rows[place] = token - 1
        self._starts[size.num_decode + len(batch.prefill) :] = token
        self.buffers.inputs.copy_(self._host, non_blocking=True)

    def _fill_rows(self, batch: ModelBatch, slots: list[int]) -> None:
        """Decode rows with draft tokens behind them: these, and the token before them, get draft rows."""
        sources, ids, lengths = self._drafts.reshape(3, -1)
        sources[:] = -1
        token = 0
        for sequence, slot in zip(batch.decode, slots, strict=True):
            draft = batch.drafts.get(sequence.sequence_id)
            end = token + 1 + (len(draft) if draft else 0)
            self._slots[token] = slot
            if draft:
                known = sequence.num_target
                sources[token:end] = slot
                ids[token:end] = (sequence.token_ids[-1], *draft)
                lengths[token:end] = np.arange(known, known + end - token)
                self._slots[token:end] = self._first_draft_row + np.arange(token, end)
            token = end
        self.sampled_slots[:] = self._slots

    def launch(self, compute: Callable[[PassBuffers], Tensor | None]) -> None:
        """Queue the pass in the current stream."""
        self.has_run = True
        if self._replay is not None:
            self._replay()
        else:
            self._compute(compute)

    def _compute(self, compute: Callable[[PassBuffers], Tensor | None]) -> None:
        self.logits = compute(self.buffers)

    def _mirror(self, part: Tensor) -> "np.ndarray":
        start = part.storage_offset() - self.buffers.inputs.storage_offset()
        return self._host[start : start + part.numel()].numpy()
