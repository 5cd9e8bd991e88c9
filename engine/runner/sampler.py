"""From sequences to the batched sampling call, and failures kept to their own row."""

import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from engine.api.request import SamplingParams
from engine.device.faults import belongs_to_device, describe
from engine.scheduler.sequence import Sequence
from kernels.reference.sampler import LogitEdits, SamplingBatch, sample, uniform

NO_DRAFTS: Mapping[int, list[int]] = {}


@dataclass(slots=True)
class Sampled:
    """What one pass's rows gave: an id or a readable cause per sequence id."""

    ids: dict[int, int]
    failed: dict[int, str]
    accepted: dict[int, list[int]] = field(default_factory=dict)
    """Draft tokens that were accepted, which stand before the id; no entry where there are none."""
    unfinished: set[int] = field(default_factory=set)
    """Models whose chunks were left half-way: the same ones are to be given again."""
    timed: bool = True
    """Whether the pass says how long others like it take."""

    def update(self, other: "Sampled") -> None:
        """Take in what another pass of the same tick gave."""
        self.ids.update(other.ids)
        self.failed.update(other.failed)
        self.accepted.update(other.accepted)
        self.unfinished |= other.unfinished
        self.timed = self.timed and other.timed


class Row(NamedTuple):
    """A row of logits: of the token that follows what a sequence has and some draft tokens."""

    sequence: Sequence
    draft: list[int]

    @property
    def token_ids(self) -> list[int]:
        """All tokens before the one to sample."""
        return self.sequence.token_ids + self.draft if self.draft else self.sequence.token_ids

    @property
    def position(self) -> int:
        """Of the token to sample."""
        return len(self.sequence.token_ids) + len(self.draft)


def sample_rows(
    logits: Tensor, sequences: Seq[Sequence], drafts: Mapping[int, list[int]] = NO_DRAFTS
) -> Sampled:
    """Sample from logits [R, vocab] float32, a row for each sequence and for each token of its draft.

    A draft token is accepted when the row before it samples it, by that position's own random number; so
    a sequence gets the tokens that it would get one by one. A row with a NaN or infinite logit, or
    whose parameters raise, fails its sequence alone.
    """
    rows = [
        Row(sequence, draft[:count])
        for sequence in sequences
        for draft in (drafts.get(sequence.sequence_id, []),)
        for count in range(len(draft) + 1)
    ]
    outcomes = iter(_sample(logits, rows))
    result = Sampled({}, {})
    for sequence in sequences:
        draft = drafts.get(sequence.sequence_id, [])
        verify(sequence.sequence_id, draft, [next(outcomes) for _ in range(len(draft) + 1)], result)
    return result


def verify(sequence_id: int, draft: list[int], outcomes: list[int | str], result: Sampled) -> None:
    """Follow a draft up to the first outcome that is not its token; what lies behind does not count."""
    count = 0
    while count < len(draft) and outcomes[count] == draft[count]:
        count += 1
    outcome = outcomes[count]
    if isinstance(outcome, str):
        result.failed[sequence_id] = outcome
        return
    result.ids[sequence_id] = outcome
    if count:
        result.accepted[sequence_id] = draft[:count]


def _sample(logits: Tensor, rows: Seq[Row]) -> list[int | str]:
    """An id or a cause for each row."""
    try:
        return _sample_together(logits, rows)
    except Exception as error:
        if belongs_to_device(error):
            raise
    outcomes: list[int | str] = []
    for index, row in enumerate(rows):
        try:
            outcomes += _sample_together(logits[index : index + 1], [row])
        except Exception as error:
            if belongs_to_device(error):
                raise
            outcomes.append(f"sampling failed: {describe(error)}")
    return outcomes


def _sample_together(logits: Tensor, rows: Seq[Row]) -> list[int | str]:
    ids, finite = sample(logits, _batch(rows, logits.shape[-1], logits.device))
    return [
        token_id if ok else not_finite_cause(row.sequence.request.sampling)
        for row, token_id, ok in zip(rows, ids.tolist(), finite.tolist(), strict=True)
    ]


def not_finite_cause(params: SamplingParams) -> str:
    """Why a row has no token: its logits were no numbers."""
    cause = "the model computed logits that are not numbers (NaN or infinity); the file may be damaged"
    if -math.inf in params.logit_bias.values():
        return f"logit_bias forbids every token that the model gives a chance, or {cause}"
    return cause


def _batch(rows: Seq[Row], vocab: int, device: torch.device) -> SamplingBatch:
    params = [row.sequence.request.sampling for row in rows]
    return SamplingBatch(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        top_k=torch.tensor([p.top_k for p in params], device=device),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
        uniform=torch.tensor(
            [uniform(row.sequence.seed, row.position) for row in rows], dtype=torch.float64, device=device
        ),
        edits=_edits(rows, vocab, device),
        all_greedy=all(p.temperature <= 0 for p in params),
    )


def _edits(rows: Seq[Row], vocab: int, device: torch.device) -> LogitEdits | None:
    places: list[int] = []
    tokens: list[int] = []
    scale: list[float] = []
    offset: list[float] = []
    for place, row in enumerate(rows):
        params = row.sequence.request.sampling
        if not edits_logits(params):
            continue
        for token, (factor, added) in _row_edits(row, params).items():
            if token < vocab:
                places.append(place)
                tokens.append(token)
                scale.append(factor)
                offset.append(added)
    if not places:
        return None
    return LogitEdits(
        torch.tensor(places, device=device),
        torch.tensor(tokens, device=device),
        torch.tensor(scale, dtype=torch.float32, device=device),
        torch.tensor(offset, dtype=torch.float32, device=device),
    )


def edits_logits(params: SamplingParams) -> bool:
    """Whether logits are changed before a token is chosen: by penalties or biases."""
    return bool(
        params.repetition_penalty != 1.0
        or params.frequency_penalty
        or params.presence_penalty
        or params.logit_bias
    )


def _row_edits(row: Row, params: SamplingParams) -> dict[int, tuple[float, float]]:
    """Token → (repetition factor, added): repetition sees prompt and answer, the others the answer."""
    token_ids = row.token_ids
    answered = Counter(token_ids[row.sequence.answer_start :])
    edits = {token: (1.0, float(bias)) for token, bias in params.logit_bias.items()}
    if params.repetition_penalty != 1.0:
        for token in set(token_ids):
            edits[token] = (params.repetition_penalty, edits.get(token, (1.0, 0.0))[1])
    for token, count in answered.items():
        factor, added = edits.get(token, (1.0, 0.0))
        edits[token] = (factor, added - params.presence_penalty - params.frequency_penalty * count)
    return edits
