"""What the sampler remembers of each row on the device: parameters, token counts and biases."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

TEMPERATURE = tl.constexpr(0)
TOP_P = tl.constexpr(1)
MIN_P = tl.constexpr(2)
REPETITION = tl.constexpr(3)
FREQUENCY = tl.constexpr(4)
PRESENCE = tl.constexpr(5)
TOP_K = tl.constexpr(6)
EDITED = tl.constexpr(7)
SEED = tl.constexpr(8)
FIELDS = tl.constexpr(16)
_SEEN_IN_PROMPT = -(1 << 15)
_MOST_COUNTED = (1 << 15) - 1
_MASK_TILE = 1024


@dataclass(frozen=True, slots=True)
class RowParameters:
    """How one row is sampled; the order of application is that of `kernels.reference.sampler`."""

    temperature: float
    """0 is greedy."""
    top_k: int
    """0 keeps all."""
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    """In [0, 2**64)."""

    @property
    def penalises(self) -> bool:
        """Whether token counts matter."""
        return bool(self.repetition_penalty != 1.0 or self.frequency_penalty or self.presence_penalty)


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Per-row sampling state; the addresses never change. 6 bytes per row and token of the vocabulary."""

    rows: Tensor
    """int32 [max_rows + draft_rows, 16]: float32 bits of temperature, top-p, min-p and the three
    penalties, then top-k, whether logits are edited, and the seed's low and high half."""
    counts: Tensor
    """int16 [max_rows, vocab]: low 15 bits count the answer's tokens, the sign marks the prompt's.
    Kept for edited rows only."""
    bias: Tensor
    """float32 [max_rows, vocab], added to the logits of edited rows."""

    @classmethod
    def create(
        cls, max_rows: int, vocab: int, device: torch.device | str, draft_rows: int = 0
    ) -> "SamplerState":
        """All rows greedy and unedited; draft_rows: rows behind them that are never edited."""
        return cls(
            rows=torch.zeros(max_rows + draft_rows, FIELDS.value, dtype=torch.int32, device=device),
            counts=torch.zeros(max_rows, vocab, dtype=torch.int16, device=device),
            bias=torch.zeros(max_rows, vocab, dtype=torch.float32, device=device),
        )

    def set_row(
        self,
        slot: int,
        parameters: RowParameters,
        prompt_ids: Sequence[int] = (),
        answer_ids: Sequence[int] = (),
        logit_bias: Mapping[int, float] | None = None,
        masked: bool = False,
    ) -> None:
        """Start or continue a row; tokens count only where a penalty needs them.

        masked: `set_masks` says before each draw which tokens it may have. Ordered in the current stream;
        waits for nothing. Ids beyond the vocabulary have no effect.
        """
        edited = parameters.penalises or bool(logit_bias) or masked
        self.rows[slot].copy_(_fields(parameters, edited), non_blocking=True)
        if not edited:
            return
        vocab = self.counts.shape[1]
        counts = _counts(prompt_ids, answer_ids, vocab) if parameters.penalises else {}
        _scatter(self.counts[slot], counts)
        _scatter(self.bias[slot], {t: b for t, b in (logit_bias or {}).items() if t < vocab})

    def set_masks(self, slots: Tensor, words: Tensor) -> None:
        """Let masked rows have no tokens but those whose bits are set, until this is called for them again.

        slots int32 [M], -1 for a row that stays as it is; words int32 [M, ceil(vocab / 32)], a bit for each
        token, the lowest first; both on the device. What was added to logits before has no effect any more.
        """
        vocab = self.bias.shape[1]
        _write_masks[(triton.cdiv(vocab, _MASK_TILE), words.shape[0])](
            slots, words, self.bias, VOCAB=vocab, WORDS=words.shape[1], TILE=_MASK_TILE, num_warps=4
        )

    def add_bias(self, slot: int, logit_bias: Mapping[int, float]) -> None:
        """Add to logits of a masked row behind `set_masks`. Waits for nothing."""
        row = self.bias[slot]
        known = {token: value for token, value in logit_bias.items() if token < row.shape[0]}
        tokens = torch.tensor(list(known), dtype=torch.int64).to(row.device, non_blocking=True)
        values = torch.tensor(list(known.values()), dtype=torch.float32)
        row.index_add_(0, tokens, values.to(row.device, non_blocking=True))


def _fields(parameters: RowParameters, edited: bool) -> Tensor:
    floats = torch.tensor(
        [
            parameters.temperature,
            parameters.top_p,
            parameters.min_p,
            parameters.repetition_penalty,
            parameters.frequency_penalty,
            parameters.presence_penalty,
        ],
        dtype=torch.float32,
    )
    seed = parameters.seed - (1 << 64) if parameters.seed >= 1 << 63 else parameters.seed
    fields = torch.zeros(FIELDS.value, dtype=torch.int32)
    fields[: TOP_K.value] = floats.view(torch.int32)
    fields[TOP_K.value] = min(parameters.top_k, (1 << 31) - 1)
    fields[EDITED.value] = int(edited)
    fields[SEED.value : SEED.value + 2] = torch.tensor([seed], dtype=torch.int64).view(torch.int32)
    return fields


def _counts(prompt_ids: Sequence[int], answer_ids: Sequence[int], vocab: int) -> dict[int, int]:
    counts = {token: min(n, _MOST_COUNTED) for token, n in Counter(answer_ids).items() if token < vocab}
    for token in set(prompt_ids):
        if token < vocab:
            counts[token] = counts.get(token, 0) + _SEEN_IN_PROMPT
    return counts


def _scatter(row: Tensor, entries: Mapping[int, float]) -> None:
    """Few uploaded values into a zeroed row: a copy of a whole row from pageable memory would wait."""
    row.zero_()
    tokens = torch.tensor(list(entries), dtype=torch.int64)
    values = torch.tensor(list(entries.values()), dtype=row.dtype)
    row.index_copy_(0, tokens.to(row.device, non_blocking=True), values.to(row.device, non_blocking=True))


@triton.jit
def _write_masks(
    slots: tl.tensor,
    words: tl.tensor,
    bias: tl.tensor,
    VOCAB: tl.constexpr,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Grid (ceil(VOCAB / TILE), M): 0 for tokens whose bit is set, else -inf. Writes 4 bytes per token."""
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        column = tl.program_id(0) * TILE + tl.arange(0, TILE)
        inside = column < VOCAB
        word = tl.load(words + row * WORDS + column // 32, mask=inside, other=0)
        allowed = ((word >> (column % 32)) & 1) != 0
        tl.store(bias + slot * VOCAB + column, tl.where(allowed, 0.0, float("-inf")), mask=inside)


@triton.jit
def count_token(
    rows: tl.tensor,
    counts: tl.tensor,
    slot: tl.tensor,
    token: tl.tensor,
    taken: tl.tensor,
    VOCAB: tl.constexpr,
) -> None:
    """Count an accepted token of each edited row; slots of `taken` lanes are distinct."""
    edited = tl.load(rows + tl.maximum(slot, 0) * FIELDS + EDITED, mask=taken, other=0) != 0
    place = counts + tl.maximum(slot, 0) * VOCAB + token
    old = tl.load(place, mask=edited, other=0)
    full = (old & 0x7FFF) == 0x7FFF
    tl.store(place, tl.where(full, old, old + 1).to(tl.int16), mask=edited)


@triton.jit
def float_field(rows: tl.tensor, slot: tl.tensor, FIELD: tl.constexpr) -> tl.tensor:
    """One float32 parameter of a row."""
    return tl.load(rows + slot * FIELDS + FIELD).to(tl.float32, bitcast=True)


@triton.jit
def kept_by_top_k(rows: tl.tensor, slot: tl.tensor, VOCAB: tl.constexpr) -> tl.tensor:
    """Tokens that a row's top-k keeps, 0 for all."""
    top_k = tl.load(rows + slot * FIELDS + TOP_K)
    return tl.where((top_k < 0) | (top_k >= VOCAB), 0, top_k)


@triton.jit
def uniform(rows: tl.tensor, slot: tl.tensor, position: tl.tensor) -> tl.tensor:
    """A float64 in [0, 1) from a row's seed and a position (as `kernels.reference.sampler.uniform`)."""
    low = tl.load(rows + slot * FIELDS + SEED).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(rows + slot * FIELDS + SEED + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed = low | (high << 32)
    return _mixed(seed + (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def next_uniform(drawn: tl.tensor, attempt: tl.tensor) -> tl.tensor:
    """Further numbers of a row from its first, which is number 0 (as `kernels.reference.sampler`)."""
    seed = (drawn * 9007199254740992.0).to(tl.int64).to(tl.uint64)
    further = _mixed(seed + attempt.to(tl.uint64) * 0x9E3779B97F4A7C15)
    return tl.where(attempt == 0, drawn, further)


@triton.jit
def _mixed(z: tl.tensor) -> tl.tensor:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return (z >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
