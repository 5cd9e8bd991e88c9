"""From sequences to the batched sampling call, and failures kept to their own row.

Random numbers are a function of (seed, position) alone, so a row's draw does not depend on who
else is in the batch (splitmix64: Steele, Lea and Flood 2014).
"""

import math
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device_faults import belongs_to_device, describe
from engine.request import SamplingParams
from engine.sequence import Sequence
from kernels.sampling import LogitEdits, SamplingBatch, sample

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Sampled:
    """What one pass's rows gave: an id or a readable cause per sequence id."""

    ids: dict[int, int]
    failed: dict[int, str]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a seed and a position."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return (z >> 11) * 2.0**-53


def sample_rows(logits: Tensor, sequences: Seq[Sequence]) -> Sampled:
    """Sample one id for each row of logits [R, vocab] float32.

    A row with a NaN or infinite logit, or whose parameters raise, fails alone.
    """
    try:
        return _sample_together(logits, sequences)
    except Exception as error:
        if belongs_to_device(error):
            raise
    result = Sampled({}, {})
    for row, sequence in enumerate(sequences):
        try:
            one = _sample_together(logits[row : row + 1], [sequence])
        except Exception as error:
            if belongs_to_device(error):
                raise
            result.failed[sequence.sequence_id] = f"sampling failed: {describe(error)}"
            continue
        result.ids.update(one.ids)
        result.failed.update(one.failed)
    return result


def _sample_together(logits: Tensor, sequences: Seq[Sequence]) -> Sampled:
    batch = _batch(sequences, logits.shape[-1], logits.device)
    ids, finite = sample(logits, batch)
    result = Sampled({}, {})
    for sequence, token_id, ok in zip(sequences, ids.tolist(), finite.tolist(), strict=True):
        if ok:
            result.ids[sequence.sequence_id] = token_id
        else:
            result.failed[sequence.sequence_id] = not_finite_cause(sequence.request.sampling)
    return result


def not_finite_cause(params: SamplingParams) -> str:
    """Why a row has no token: its logits were no numbers."""
    cause = "the model computed logits that are not numbers (NaN or infinity); the file may be damaged"
    if -math.inf in params.logit_bias.values():
        return f"logit_bias forbids every token, or {cause}"
    return cause


def _batch(sequences: Seq[Sequence], vocab: int, device: torch.device) -> SamplingBatch:
    params = [sequence.request.sampling for sequence in sequences]
    drawn = [p.top_k for p in params if p.temperature > 0]
    return SamplingBatch(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        top_k=torch.tensor([p.top_k for p in params], device=device),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
        uniform=torch.tensor(
            [uniform(s.seed, len(s.token_ids)) for s in sequences], dtype=torch.float64, device=device
        ),
        edits=_edits(sequences, vocab, device),
        max_top_k=0 if 0 in drawn else max(drawn, default=0),
        all_greedy=not drawn,
    )


def _edits(sequences: Seq[Sequence], vocab: int, device: torch.device) -> LogitEdits | None:
    rows: list[int] = []
    tokens: list[int] = []
    scale: list[float] = []
    offset: list[float] = []
    for row, sequence in enumerate(sequences):
        params = sequence.request.sampling
        if not _edits_logits(params):
            continue
        for token, (factor, added) in _row_edits(sequence, params).items():
            if token < vocab:
                rows.append(row)
                tokens.append(token)
                scale.append(factor)
                offset.append(added)
    if not rows:
        return None
    return LogitEdits(
        torch.tensor(rows, device=device),
        torch.tensor(tokens, device=device),
        torch.tensor(scale, dtype=torch.float32, device=device),
        torch.tensor(offset, dtype=torch.float32, device=device),
    )


def _edits_logits(params: SamplingParams) -> bool:
    return bool(
        params.repetition_penalty != 1.0
        or params.frequency_penalty
        or params.presence_penalty
        or params.logit_bias
    )


def _row_edits(sequence: Sequence, params: SamplingParams) -> dict[int, tuple[float, float]]:
    """Token → (repetition factor, added): repetition sees prompt and answer, the others the answer."""
    answered = Counter(sequence.token_ids[sequence.prompt_len :])
    edits = {token: (1.0, float(bias)) for token, bias in params.logit_bias.items()}
    if params.repetition_penalty != 1.0:
        for token in set(sequence.token_ids):
            edits[token] = (params.repetition_penalty, edits.get(token, (1.0, 0.0))[1])
    for token, count in answered.items():
        factor, added = edits.get(token, (1.0, 0.0))
        edits[token] = (factor, added - params.presence_penalty - params.frequency_penalty * count)
    return edits
