"""From sequences to the batched sampling call, and failures kept to their own row."""

import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.api.request import TokenLogprobs
from engine.device.faults import belongs_to_device, describe
from engine.runner.logits.edits import edits_logits, row_edits
from engine.runner.logits.logprobs import logprobs_of, read_logprobs
from engine.scheduler.sequence import Sequence
from kernels.reference.sampler import LogitEdits, SamplingBatch, TokenMasks, best, sample, uniform

PATIENCE_S = 0.002
"""All rows together wait as long for a mask; a row that is held loses one pass, by itself."""
_MASK_WAIT_S = 0.0002
"""Between two looks at whether the device is still busy."""
_NOT_FINITE = -1
"""In place of a token id."""
NO_DRAFTS: Mapping[int, list[int]] = {}


@dataclass(slots=True)
class Sampled:
    """What one pass's rows gave: an id or a readable cause per sequence id."""

    ids: dict[int, int]
    failed: dict[int, str]
    accepted: dict[int, list[int]] = field(default_factory=dict)
    """Draft tokens that were accepted, which stand before the id; no entry where there are none."""
    held: set[int] = field(default_factory=set)
    """Sequences whose masks were not there in time: they get their token in a later tick."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """Of the ids of sequences that ask for them."""
    unfinished: set[int] = field(default_factory=set)
    """Models whose chunks were left half-way: the same ones are to be given again."""
    timed: bool = True
    """Whether the pass says how long others like it take."""

    def update(self, other: "Sampled") -> None:
        """Take in what another pass of the same tick gave."""
        self.ids.update(other.ids)
        self.failed.update(other.failed)
        self.accepted.update(other.accepted)
        self.held |= other.held
        self.logprobs.update(other.logprobs)
        self.unfinished |= other.unfinished
        self.timed = self.timed and other.timed


class Row(NamedTuple):
    """A row of logits: of the token that follows what a sequence has and some draft tokens."""

    sequence: Sequence
    draft: list[int]

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
    whose parameters raise, fails its sequence alone. What waits for its mask while others do not is held.
    """
    held = wait_for_masks(sequences, lambda: False)
    rows = [
        Row(sequence, draft[:count])
        for sequence in sequences
        for draft in (drafts.get(sequence.sequence_id, []),)
        for count in range(len(draft) + 1)
    ]
    if held:
        sequences = [sequence for sequence in sequences if sequence.sequence_id not in held]
        logits = logits[[index for index, row in enumerate(rows) if row.sequence.sequence_id not in held]]
        rows = [row for row in rows if row.sequence.sequence_id not in held]
    outcomes = iter(_sample(logits, rows))
    result = Sampled({}, {}, held=held)
    for sequence in sequences:
        draft = drafts.get(sequence.sequence_id, [])
        verify(sequence.sequence_id, draft, [next(outcomes) for _ in range(len(draft) + 1)], result)
    asking = [
        (index, row.sequence)
        for index, row in enumerate(rows)
        if row.sequence.request.top_logprobs is not None and row.sequence.sequence_id in result.ids
    ]
    if asking:
        chosen = torch.tensor([result.ids[s.sequence_id] for _, s in asking], device=logits.device)
        told = logprobs_of(logits[[index for index, _ in asking]], chosen).cpu()
        result.logprobs = read_logprobs([sequence for _, sequence in asking], told)
    return result


def wait_for_masks(sequences: Seq[Sequence], busy: Callable[[], bool]) -> set[int]:
    """Sequences, by id, that what they are held to has given no mask yet.

    Waits while the device is `busy` anyway, while there is nobody who has one and could go on, and once for
    each mask that may be nearly ready: the shorter, the more rows wait for it.
    """
    waiting = {one.sequence_id: one.matcher for one in sequences if one.matcher is not None}
    patient = time.perf_counter() + PATIENCE_S / max(1, len(sequences))
    while waiting := {key: matcher for key, matcher in waiting.items() if not matcher.ready.is_set()}:
        late = time.perf_counter() > patient or all(matcher.late for matcher in waiting.values())
        if late and len(waiting) < len(sequences) and not busy():
            break
        next(iter(waiting.values())).ready.wait(_MASK_WAIT_S)
    for matcher in waiting.values():
        matcher.late = True
    return set(waiting)


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
    vocab, device = logits.shape[-1], logits.device
    edits, masks = _edits(rows, vocab, device), _masks(rows, device)
    if all(row.sequence.request.sampling.temperature <= 0 for row in rows):
        _, ids, finite = best(logits, edits, masks)
    else:
        ids, finite = sample(logits, _batch(rows, edits, masks))
    # Each look at a device's numbers waits for it.
    told = torch.where(finite, ids, _NOT_FINITE).tolist()
    return [
        not_finite_cause(row.sequence) if token_id == _NOT_FINITE else token_id
        for row, token_id in zip(rows, told, strict=True)
    ]


def not_finite_cause(sequence: Sequence) -> str:
    """Why a row has no token: its logits were no numbers."""
    cause = "the model computed logits that are not numbers (NaN or infinity); the file may be damaged"
    if sequence.matcher is not None:
        return (
            sequence.matcher.error or f"what the answer is held to leaves no token that may come, or {cause}"
        )
    if -math.inf in sequence.request.sampling.logit_bias.values():
        return f"logit_bias forbids every token that the model gives a chance, or {cause}"
    return cause


def _batch(rows: Seq[Row], edits: LogitEdits | None, masks: TokenMasks | None) -> SamplingBatch:
    params = [row.sequence.request.sampling for row in rows]
    return SamplingBatch(
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        top_k=np.array([p.top_k for p in params], dtype=np.int64),
        top_p=np.array([p.top_p for p in params], dtype=np.float32),
        min_p=np.array([p.min_p for p in params], dtype=np.float32),
        uniform=np.array([uniform(row.sequence.seed, row.position) for row in rows]),
        edits=edits,
        masks=masks,
    )


def _masks(rows: Seq[Row], device: torch.device) -> TokenMasks | None:
    held = [(place, row.sequence.matcher.words) for place, row in enumerate(rows) if row.sequence.matcher]
    if not held:
        return None
    places, words = zip(*held, strict=True)
    return TokenMasks(torch.tensor(places, device=device), torch.from_numpy(np.stack(words)).to(device))


def _edits(rows: Seq[Row], vocab: int, device: torch.device) -> LogitEdits | None:
    places, found = [], []
    for place, row in enumerate(rows):
        if edits_logits(row.sequence.request.sampling):
            found.append(row_edits(row.sequence, row.draft, vocab))
            places.append(np.full(len(found[-1][0]), place))
    if not found:
        return None
    tokens, scale, offset = (np.concatenate(part) for part in zip(*found, strict=True))
    return LogitEdits(
        torch.from_numpy(np.concatenate(places)).to(device),
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(scale.astype(np.float32)).to(device),
        torch.from_numpy(offset.astype(np.float32)).to(device),
    )
