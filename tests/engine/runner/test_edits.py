"""Edits of logits as a text grows, beside ones counted anew for each token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.request import Request, SamplingParams
from engine.runner.logits.edits import row_edits
from engine.scheduler.sequence import Sequence

VOCAB = 12
tokens = st.integers(0, VOCAB + 2)


def counted_anew(
    params: SamplingParams, prompt: list[int], answer: list[int]
) -> dict[int, tuple[float, float]]:
    """Token → (factor, added), of those that change anything and that the model has."""
    found = {}
    for token in range(VOCAB):
        factor = params.repetition_penalty if token in prompt + answer else 1.0
        count = answer.count(token)
        added = params.logit_bias.get(token, 0.0) - params.frequency_penalty * count
        found[token] = (factor, added - params.presence_penalty * (count > 0))
    return {token: edit for token, edit in found.items() if edit != (1.0, 0.0)}


@given(
    st.lists(tokens, min_size=1, max_size=6),
    st.integers(0, 3),
    st.lists(tokens, max_size=8),
    st.lists(tokens, max_size=3),
    st.dictionaries(tokens, st.sampled_from([-2.0, 1.5]), max_size=4),
    st.sampled_from([1.0, 1.5]),
    st.sampled_from([0.0, 0.25, -0.5]),
    st.sampled_from([0.0, 1.0]),
)
def test_growing_texts(prompt, continued, answer, draft, bias, repetition, frequency, presence):
    params = SamplingParams(
        repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence, logit_bias=bias
    )
    continued = min(continued, len(prompt))
    sequence = Sequence(1, 1, Request(tuple(prompt), params, answered=continued), arrival=0.0)
    start = len(prompt) - continued
    for length in range(len(answer) + 1):
        sequence.token_ids[len(prompt) :] = answer[:length]
        ids, scale, offset = row_edits(sequence, draft, VOCAB)
        assert len(set(ids.tolist())) == len(ids)
        given_edits = {i: (s, o) for i, s, o in zip(ids.tolist(), scale, offset, strict=True)}
        wanted = counted_anew(params, prompt[:start], prompt[start:] + answer[:length] + draft)
        assert {i: edit for i, edit in given_edits.items() if edit != (1.0, 0.0)} == pytest.approx(wanted)
