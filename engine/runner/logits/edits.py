"""Which logits of a row are changed before its token is chosen: by penalties and biases."""

import numpy as np
from numpy.typing import NDArray

from engine.api.request import SamplingParams
from engine.scheduler.sequence import Sequence

Edits = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
"""Tokens, each once; what positive logits are divided by and others multiplied with; what is added then."""

NO_PENALTIES = (1.0, 0.0, 0.0)


def edits_logits(params: SamplingParams) -> bool:
    """Whether logits are changed before a token is chosen: by penalties or biases."""
    return bool(_penalties(params) != NO_PENALTIES or params.logit_bias)


def _penalties(params: SamplingParams) -> tuple[float, float, float]:
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty


def row_edits(sequence: Sequence, draft: list[int], vocab: int) -> Edits:
    """Of the token behind a text and a draft: repetition sees prompt and answer, the others the answer."""
    params = sequence.request.sampling
    repetition, frequency, presence = _penalties(params)
    biased = np.fromiter(params.logit_bias.keys(), np.int64)
    bias = np.fromiter(params.logit_bias.values(), np.float64)
    tokens, scale, offset = biased, np.ones(len(biased)), bias
    if (repetition, frequency, presence) != NO_PENALTIES:
        found = sequence.occurrences()
        found = found.with_tokens(draft) if draft else found
        # Copies: an array that is looked at cannot grow.
        seen, count = np.array(found.tokens), np.array(found.answered)
        added = -presence * (count > 0) - frequency * count
        if len(seen):
            tokens, scale, offset = _biased(seen, repetition, added, biased, bias)
    known = tokens < vocab
    return tokens[known], scale[known], offset[known]


def _biased(
    seen: NDArray[np.int64],
    repetition: float,
    added: NDArray[np.float64],
    biased: NDArray[np.int64],
    bias: NDArray[np.float64],
) -> Edits:
    """Of tokens of the text, at least one, and of those with biases, each token once."""
    order = np.argsort(seen)
    place = order[np.minimum(np.searchsorted(seen, biased, sorter=order), len(seen) - 1)]
    there = seen[place] == biased
    added[place[there]] += bias[there]
    scale = np.full(len(seen), repetition)
    new = biased[~there]
    return (
        np.concatenate([seen, new]),
        np.concatenate([scale, np.ones(len(new))]),
        np.concatenate([added, bias[~there]]),
    )
