"""Sampling against plain per-row arithmetic, and its independence of batch mates."""

import math

import numpy as np
import pytest
import torch

from engine.api.request import MAX_BIAS, Request, SamplingParams
from engine.runner.sampler import sample_rows
from engine.scheduler.sequence import Sequence
from kernels.reference.sampler import uniform

VOCAB = 97


def sequence(
    params: SamplingParams, prompt=(1, 2, 3), answer=(), seed: int = 5, sequence_id: int = 1
) -> Sequence:
    made = Sequence(sequence_id, 1, Request(tuple(prompt), params), arrival=0.0, seed=seed)
    made.token_ids += answer
    return made


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def kept_weights(row: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Ids from the best down, and their weights: 0 for what is not kept."""
    order = np.argsort(-row, kind="stable")
    weight = np.exp((row[order] - row[order[0]]) / params.temperature)
    keep = np.ones(len(row), bool)
    if params.top_k:
        keep[params.top_k :] = False
    weight = np.where(keep, weight, 0)
    share = weight / weight.sum()
    nucleus = np.cumsum(share) - share < params.top_p
    likely = weight >= params.min_p * weight[0]
    keep = nucleus & likely
    keep[0] = True
    return order, np.where(keep, weight, 0)


def inverse(weight: np.ndarray, drawn: float) -> int:
    cumulative = np.cumsum(weight)
    index = int(np.searchsorted(cumulative, drawn * cumulative[-1], side="right"))
    return min(index, int(np.nonzero(weight)[0][-1]))


def reference_choice(row: np.ndarray, params: SamplingParams, drawn: float) -> int:
    """One row in float64 numpy, following the documented order step by step."""
    order, weight = kept_weights(row, params)
    by_id = np.zeros(len(row))
    by_id[order] = weight
    if params.top_k or (params.min_p > 0 and params.top_p < 1) or params.top_p < 0.25:
        return int(order[inverse(weight, drawn)])
    if params.top_p >= 1:
        return inverse(by_id, drawn)
    open_weight = np.exp((row - row.max()) / params.temperature)
    token, first, attempt = inverse(open_weight, drawn), int(drawn * 2**53), 0
    while by_id[token] == 0:
        attempt += 1
        token = inverse(open_weight, uniform(first, attempt - 1))
    return token


def choose(rows: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    result = sample_rows(rows, sequences)
    assert not result.failed
    return [result.ids[s.sequence_id] for s in sequences]


def one_by_one(rows: torch.Tensor, params: SamplingParams) -> list[int]:
    """What a sequence gets when its logits are `rows`, a token at a time."""
    made = sequence(params)
    for row in rows:
        made.token_ids += choose(row[None], [made])
    return made.token_ids[made.prompt_len :]


@pytest.mark.parametrize("wrong", [0, 1, 3, 5, None])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0),
        SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.7, logit_bias={4: 3.0}),
        SamplingParams(temperature=0.0, frequency_penalty=2.0, presence_penalty=3.0),
    ],
    ids=["greedy", "drawn", "repetition", "frequency"],
)
def test_drafts_are_accepted_as_far_as_tokens_one_by_one_agree(params: SamplingParams, wrong: int | None):
    rows = logits(6) + torch.nn.functional.one_hot(torch.tensor(9), VOCAB) * 9
    expected = one_by_one(rows, params)
    draft = expected[:5]
    if wrong is not None and wrong < 5:
        draft[wrong] = (draft[wrong] + 1) % VOCAB
    other = sequence(SamplingParams(temperature=1.0), seed=8, sequence_id=2)
    alone = choose(logits(1, seed=3), [other])
    result = sample_rows(torch.cat([rows, logits(1, seed=3)]), [sequence(params), other], {1: draft})
    true = 5 if wrong is None else min(wrong, 5)
    assert result.accepted.get(1, []) == expected[:true]
    assert result.ids == {1: expected[true], 2: alone[0]} and not result.failed


def test_penalties_count_the_drafts_before_a_token():
    favoured = logits(3) * 0 + torch.nn.functional.one_hot(torch.tensor(9), VOCAB) * 5
    favoured[:, 8] = 4.0
    once = SamplingParams(temperature=0.0, presence_penalty=2.0)
    assert one_by_one(favoured, once) == [9, 8, 9]
    result = sample_rows(favoured, [sequence(once)], {1: [9, 9]})
    assert (result.accepted, result.ids) == ({1: [9]}, {1: 8})


def test_a_bad_row_fails_its_sequence_only_where_the_draft_leads_to_it():
    rows = logits(3)
    rows[2] = math.nan
    greedy = SamplingParams(temperature=0.0)
    first, second = one_by_one(rows[:2], greedy)
    missed = sample_rows(rows, [sequence(greedy)], {1: [first + 1, second]})
    assert (missed.ids, missed.failed) == ({1: first}, {})
    led = sample_rows(rows, [sequence(greedy)], {1: [first, second]})
    assert (led.ids, led.accepted) == ({}, {}) and "not numbers" in led.failed[1]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0),
        SamplingParams(temperature=1.3, top_k=5, top_p=1.0, min_p=0.0),
        SamplingParams(temperature=1.0, top_k=0, top_p=0.6, min_p=0.0),
        SamplingParams(temperature=5.0, top_k=0, top_p=0.25, min_p=0.0),
        SamplingParams(temperature=3.0, top_k=0, top_p=0.2, min_p=0.0),
        SamplingParams(temperature=3.0, top_k=0, top_p=0.9, min_p=0.01),
        SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.2),
        SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05),
        SamplingParams(temperature=1.0, top_k=1, top_p=0.0, min_p=1.0),
    ],
)
def test_each_row_is_what_the_documented_order_gives(params: SamplingParams):
    rows = logits(40, seed=3)
    sequences = [sequence(params, seed=100 + i, sequence_id=i) for i in range(40)]
    expected = [
        reference_choice(row.double().numpy(), params, uniform(s.seed, len(s.token_ids)))
        for row, s in zip(rows, sequences, strict=True)
    ]
    assert choose(rows, sequences) == expected


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05),
        SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0),
        SamplingParams(temperature=1.5, top_k=0, top_p=0.6, min_p=0.0),
        SamplingParams(temperature=1.5, top_k=0, top_p=0.6, min_p=0.01),
        SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.01),
        SamplingParams(temperature=2.0, top_k=5000, top_p=0.9, min_p=0.01),
        SamplingParams(temperature=1.0, top_k=0, top_p=0.1, min_p=0.0),
    ],
    ids=lambda params: f"k{params.top_k}-p{params.top_p}-m{params.min_p}",
)
def test_each_row_of_a_large_vocabulary_is_what_the_documented_order_gives(params: SamplingParams):
    """Looked at block by block, and beside rows with other parameters."""
    rows = torch.randn(6, 20_003, generator=torch.Generator().manual_seed(4)) * 3
    other = SamplingParams(temperature=1.0, top_k=3)
    sequences = [
        sequence(other if number == 3 else params, seed=number, sequence_id=number) for number in range(6)
    ]
    chosen = choose(rows, sequences)
    for row, made, token in zip(rows.double().numpy(), sequences, chosen, strict=True):
        drawn = uniform(made.seed, len(made.token_ids))
        assert token == reference_choice(row, made.request.sampling, drawn)


def test_greedy_takes_the_largest():
    rows = logits(4)
    sequences = [sequence(SamplingParams(temperature=0.0), sequence_id=i) for i in range(4)]
    assert choose(rows, sequences) == rows.argmax(-1).tolist()


def test_a_row_does_not_depend_on_its_batch():
    mixed = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.9, top_k=3),
        SamplingParams(temperature=1.5, top_k=0, top_p=0.9),
        SamplingParams(temperature=0.7, repetition_penalty=1.3),
        SamplingParams(temperature=0.7, top_k=20, frequency_penalty=0.5, logit_bias={7: 4.0}),
    ]
    rows = logits(5, seed=9)
    sequences = [sequence(p, answer=(4, 4, 7), seed=i, sequence_id=i) for i, p in enumerate(mixed)]
    together = choose(rows, sequences)
    apart = [choose(rows[i : i + 1], [s])[0] for i, s in enumerate(sequences)]
    assert together == apart


def test_the_same_seed_and_position_draw_the_same_number():
    assert uniform(7, 3) == uniform(7, 3)
    drawn = [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert len(set(drawn)) == len(drawn)
    assert abs(float(np.mean(drawn)) - 0.5) < 0.02
    assert all(0 <= value < 1 for value in drawn)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), [0.2, 0.5, 0.0, 0.25, 0.05]),
        (SamplingParams(temperature=1.0, top_k=0, top_p=0.7, min_p=0.0), [0, 2 / 3, 0, 1 / 3, 0]),
        (SamplingParams(temperature=1.0, top_k=0, top_p=0.3, min_p=0.0), [0, 1, 0, 0, 0]),
        (SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.3), [4 / 19, 10 / 19, 0, 5 / 19, 0]),
        (SamplingParams(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0), [0, 2 / 3, 0, 1 / 3, 0]),
    ],
)  # fmt: skip
def test_frequencies_follow_the_probabilities(params: SamplingParams, wanted: list[float]):
    row = torch.log(torch.tensor([[0.2, 0.5, 1e-30, 0.25, 0.05]]))
    count = 4000
    sequences = [sequence(params, seed=i, sequence_id=i) for i in range(count)]
    share = np.bincount(choose(row.expand(count, 5), sequences), minlength=5) / count
    assert np.abs(share - wanted).max() < 4 * math.sqrt(0.25 / count)
    assert not share[np.array(wanted) == 0].any()


def test_penalties_and_bias():
    flat = torch.zeros(1, VOCAB)
    flat[0, 5], flat[0, 6] = 2.0, 1.9
    greedy = {"temperature": 0.0}
    assert choose(flat, [sequence(SamplingParams(**greedy))]) == [5]
    repeated = sequence(SamplingParams(**greedy, repetition_penalty=1.2), prompt=(5,))
    assert choose(flat, [repeated]) == [6]
    frequent = sequence(SamplingParams(**greedy, frequency_penalty=0.06), answer=(5, 5))
    assert choose(flat, [frequent]) == [6]
    in_prompt_only = sequence(SamplingParams(**greedy, frequency_penalty=0.06), prompt=(5, 5))
    assert choose(flat, [in_prompt_only]) == [5]
    present = sequence(SamplingParams(**greedy, presence_penalty=0.2), answer=(5,))
    assert choose(flat, [present]) == [6]
    biased = sequence(SamplingParams(**greedy, logit_bias={9: 3.0}))
    assert choose(flat, [biased]) == [9]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_of_bad_numbers_fails_alone(bad: float):
    rows = logits(3)
    clean = choose(rows, [sequence(SamplingParams(), seed=i, sequence_id=i) for i in range(3)])
    rows[1, 17] = bad
    result = sample_rows(rows, [sequence(SamplingParams(), seed=i, sequence_id=i) for i in range(3)])
    assert set(result.failed) == {1}
    assert "not numbers" in result.failed[1]
    assert [result.ids[0], result.ids[2]] == [clean[0], clean[2]]


def test_an_exception_while_sampling_fails_its_own_row():
    rows = logits(3)
    sequences = [sequence(SamplingParams(temperature=0.0), sequence_id=i) for i in range(3)]
    object.__setattr__(sequences[1].request.sampling, "temperature", "broken")
    result = sample_rows(rows, sequences)
    assert set(result.failed) == {1}
    assert result.ids == {0: int(rows[0].argmax()), 2: int(rows[2].argmax())}


def test_forbidden_tokens_are_never_chosen_and_forbidding_all_fails_alone():
    rows = logits(3, seed=2)
    best = int(rows[0].argmax())
    banned = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias={best: -math.inf})
    nothing = SamplingParams(temperature=0.9, logit_bias=dict.fromkeys(range(VOCAB), -math.inf))
    clean = SamplingParams(temperature=0.9)
    made = [sequence(p, seed=i, sequence_id=i) for i, p in enumerate((banned, nothing, clean))]
    result = sample_rows(rows, made)
    assert set(result.failed) == {1} and "forbids every token" in result.failed[1]
    assert result.ids[2] == choose(rows[2:], made[2:])[0]
    many = [sequence(banned, seed=i, sequence_id=i) for i in range(300)]
    assert best not in choose(rows[:1].expand(300, VOCAB), many)
    only = SamplingParams(temperature=1.0, logit_bias={t: -math.inf for t in range(VOCAB) if t != 7})
    assert choose(rows[:1], [sequence(only)]) == [7]
    greedy = SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(range(VOCAB), -math.inf))
    assert set(sample_rows(rows[:1], [sequence(greedy)]).failed) == {1}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-6, top_k=0, top_p=1.0, min_p=0.0),
        SamplingParams(temperature=1e-30, top_k=0, top_p=1.0, min_p=0.0),
        SamplingParams(temperature=1e-320),
        SamplingParams(temperature=1.0, top_k=0, top_p=0.0),
        SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, top_k=1),
    ],
)
def test_settings_that_leave_only_the_best_take_it(params: SamplingParams):
    rows = logits(30, seed=6)
    made = [sequence(params, seed=i, sequence_id=i) for i in range(30)]
    assert choose(rows, made) == rows.argmax(-1).tolist()


@pytest.mark.parametrize("top_k", [VOCAB, VOCAB + 1, 2000, 1 << 30])
def test_a_top_k_of_the_vocabulary_or_more_keeps_all(top_k: int):
    rows = logits(30, seed=8)
    chosen = []
    for k in (0, top_k):
        params = SamplingParams(temperature=3.0, top_k=k, top_p=1.0, min_p=0.0)
        chosen.append(choose(rows, [sequence(params, seed=i, sequence_id=i) for i in range(30)]))
    assert chosen[0] == chosen[1]


def test_the_largest_bias_wins_and_penalties_stay_finite():
    rows = logits(1, seed=1) * 50
    strong = SamplingParams(
        temperature=0.5,
        repetition_penalty=100.0,
        frequency_penalty=100.0,
        presence_penalty=100.0,
        logit_bias={11: MAX_BIAS},
    )
    assert choose(rows, [sequence(strong, answer=[3] * 5000)]) == [11]
