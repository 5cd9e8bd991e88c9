"""What the sampler remembers of each row on the device: parameters, token counts and biases."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.masks import mask_bias

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

    def set_masks(self, slots: Sequence[int], words: Tensor, biases: Sequence[Mapping[int, float]]) -> None:
        """Let masked rows have no tokens but those whose bits are set, until this is called for them again.

        words: int32 [M, ceil(vocab / 32)], on the host. Few copies and launches, in stream order.
        """
        vocab = self.bias.shape[1]
        device = self.bias.device
        bias = mask_bias(words.to(device, non_blocking=True), vocab)
        for row, own in enumerate(biases):
            known = {token: value for token, value in own.items() if token < vocab}
            if known:
                tokens = torch.tensor(list(known)).to(device, non_blocking=True)
                values = torch.tensor(list(known.values()), dtype=torch.float32)
                bias[row].index_add_(0, tokens, values.to(device, non_blocking=True))
        self.bias.index_copy_(0, torch.tensor(slots).to(device, non_blocking=True), bias)


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
