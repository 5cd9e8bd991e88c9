"""The device sampler against the plain one: every draw the same, save where float32 rounds a tie."""

import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api.request import Request, SamplingParams
from engine.runner.sampler import sample_rows
from engine.scheduler.sequence import Sequence
from kernels.reference.sampler import uniform
from kernels.sampling.sampler import DEFAULT_SHAPE, SamplerShape, sample
from kernels.state.sampler_state import RowParameters, SamplerState

TINY = SamplerShape(group=8, small=8, capacity=16, most=8, bins=32)
"""Few candidates fit, so that small vocabularies take every path."""
OPEN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def sequence(params: SamplingParams, sequence_id: int, prompt=(1, 2, 3), answer=()) -> Sequence:
    made = Sequence(sequence_id, 1, Request(tuple(prompt), params), arrival=0.0, seed=7919 * sequence_id + 11)
    made.token_ids += answer
    return made


def parameters_of(sequence: Sequence) -> RowParameters:
    p = sequence.request.sampling
    penalties = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
    return RowParameters(p.temperature, p.top_k, p.top_p, p.min_p, *penalties, seed=sequence.seed)


def state_of(sequences: list[Sequence], vocab: int, device: str) -> tuple[SamplerState, torch.Tensor]:
    state = SamplerState.create(len(sequences), vocab, device)
    for slot, s in enumerate(sequences):
        prompt, answer = s.token_ids[: s.prompt_len], s.token_ids[s.prompt_len :]
        state.set_row(slot, parameters_of(s), prompt, answer, s.request.sampling.logit_bias)
    lengths = torch.tensor([len(s.token_ids) for s in sequences], dtype=torch.int32, device=device)
    return state, lengths


def choose(logits: torch.Tensor, sequences: list[Sequence], device: str, shape=DEFAULT_SHAPE):
    """logits [R, vocab] or [splits, R, vocab]."""
    logits = logits.to(device)
    if logits.dim() == 2:
        logits = logits[None]
    state, lengths = state_of(sequences, logits.shape[-1], device)
    slots = torch.arange(len(sequences), dtype=torch.int32, device=device)
    ids, finite = sample(logits, state, slots, lengths, shape)
    return ids.tolist(), finite.tolist()


def expected(logits: torch.Tensor, sequences: list[Sequence]) -> list[int | None]:
    if logits.shape[-1] < 1000:
        logits = logits.cpu()
    result = sample_rows(logits, sequences)
    return [result.ids.get(s.sequence_id) for s in sequences]


def near(row: torch.Tensor, s: Sequence, chosen: int, slack: float = 2e-5) -> bool:
    """Whether a nudge of the uniform numbers or of top-p within rounding gives this token."""
    p = s.request.sampling
    state, _ = state_of([s], row.shape[-1], "cpu")
    x = _edited(row.double().cpu(), state, p)
    weight, order = torch.sort(x, descending=True, stable=True)
    weight = ((weight - weight[0]) / p.temperature).exp()
    top_k = 0 if p.top_k >= len(x) else p.top_k
    if top_k:
        weight[top_k:] = 0
    drawn = uniform(s.seed, len(s.token_ids))
    by_id = not top_k and (p.top_p >= 1 or (p.min_p <= 0 and p.top_p >= 0.25))
    for nudge_p, nudge_m in itertools.product((-slack, 0, slack), repeat=2):
        before = weight.cumsum(0) - weight
        keep = (before < (p.top_p + nudge_p) * weight.sum()) & (weight >= p.min_p * (1 + nudge_m))
        keep[0] = True
        kept = torch.where(keep, weight, 0.0)
        if by_id:
            if _near_by_id(
                weight.new_zeros(len(x)).index_copy(0, order, weight), order[keep], p, drawn, chosen
            ):
                return True
        elif _falls_on(kept, int((order == chosen).nonzero()), drawn, slack):
            return True
    return False


def _near_by_id(
    weight: torch.Tensor,
    kept: torch.Tensor,
    p: SamplingParams,
    drawn: float,
    chosen: int,
    slack: float = 2e-5,
) -> bool:
    keep = torch.zeros(len(weight), dtype=torch.bool).index_fill(0, kept, True)
    if p.top_p >= 1:
        return bool(keep[chosen]) and _falls_on(torch.where(keep, weight, 0.0), chosen, drawn, slack)
    for attempt in range(128):
        number = drawn if attempt == 0 else uniform(int(drawn * 2**53), attempt - 1)
        if _falls_on(weight, chosen, number, slack):
            return bool(keep[chosen])
        low, high = (_at(weight, number + nudge) for nudge in (-slack, slack))
        if keep[low] and keep[high]:
            return False
    return chosen == int(weight.argmax())


def _at(weight: torch.Tensor, number: float) -> int:
    cumulative = weight.cumsum(0)
    return min(int(torch.searchsorted(cumulative, number * cumulative[-1], right=True)), len(weight) - 1)


def _falls_on(weight: torch.Tensor, position: int, number: float, slack: float) -> bool:
    """Whether `number`, or one within `slack`, falls on a place of positive weight."""
    cumulative = weight.cumsum(0)
    room = slack * cumulative[-1]
    low, high = cumulative[position] - weight[position] - room, cumulative[position] + room
    return bool(weight[position] > 0) and bool(low <= number * cumulative[-1] <= high)


def _edited(x: torch.Tensor, state: SamplerState, p: SamplingParams) -> torch.Tensor:
    seen, answered = state.counts[0] != 0, (state.counts[0].int() & 0x7FFF).double()
    x = torch.where(seen, torch.where(x > 0, x / p.repetition_penalty, x * p.repetition_penalty), x)
    return x + state.bias[0] - p.frequency_penalty * answered - p.presence_penalty * (answered > 0)


def check(logits: torch.Tensor, sequences: list[Sequence], device: str, shape=DEFAULT_SHAPE) -> None:
    logits = logits.to(device)
    ids, finite = choose(logits, sequences, device, shape)
    whole = logits if logits.dim() == 2 else logits.sum(0)
    wrong = 0
    for row, (s, want) in enumerate(zip(sequences, expected(whole, sequences), strict=True)):
        assert bool(finite[row]) == (want is not None), row
        if want is None:
            assert ids[row] == 0
        elif ids[row] != want:
            wrong += bool(whole[row, ids[row]] != whole[row, want])  # a tie at the top-k's end is torch's
            assert s.request.sampling.temperature > 0, row
            assert near(whole[row], s, ids[row]), (row, s.request.sampling, ids[row], want)
    assert wrong <= max(1, len(sequences) // 8)


def vocabulary(full: bool) -> int:
    return 151_936 if full else 337


def normal(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


SETTINGS = {
    "defaults": SamplingParams(),
    "greedy": SamplingParams(temperature=0.0),
    "open": OPEN,
    "hot": SamplingParams(temperature=30.0, top_k=0, top_p=1.0, min_p=0.0),
    "cold": SamplingParams(temperature=1e-6, top_k=0, top_p=1.0, min_p=0.0),
    "coldest": SamplingParams(temperature=1e-320, top_k=5),
    "top-k": SamplingParams(temperature=1.3, top_k=5, top_p=1.0, min_p=0.0),
    "top-k 1": SamplingParams(temperature=1.3, top_k=1),
    "top-k 100": SamplingParams(temperature=3.0, top_k=100, top_p=1.0, min_p=0.0),
    "top-k 600": SamplingParams(temperature=3.0, top_k=600, top_p=0.8, min_p=0.0),
    "top-k most": SamplingParams(temperature=2.0, top_k=330, top_p=0.99, min_p=1e-4),
    "top-k all": SamplingParams(temperature=2.0, top_k=1 << 30, top_p=0.99, min_p=0.0),
    "top-p": SamplingParams(temperature=1.0, top_k=0, top_p=0.6, min_p=0.0),
    "wide top-p": SamplingParams(temperature=4.0, top_k=0, top_p=0.97, min_p=0.0),
    "tried often": SamplingParams(temperature=9.0, top_k=0, top_p=0.25, min_p=0.0),
    "small top-p": SamplingParams(temperature=6.0, top_k=0, top_p=0.2, min_p=0.0),
    "top-p and min-p": SamplingParams(temperature=4.0, top_k=0, top_p=0.9, min_p=0.02),
    "top-p 0": SamplingParams(temperature=1.0, top_k=0, top_p=0.0, min_p=0.0),
    "min-p": SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.2),
    "small min-p": SamplingParams(temperature=2.0, top_k=0, top_p=0.999, min_p=1e-3),
    "min-p 1": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=1.0),
    "all": SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3
    ),
    "bias": SamplingParams(temperature=0.9, logit_bias={5: 4.0, 9: -math.inf, 12: -2.0, 1 << 30: 9.0}),
    "edits": SamplingParams(
        temperature=1.5, top_k=0, top_p=0.9, min_p=0.0, repetition_penalty=0.8, frequency_penalty=-0.2,
        logit_bias={3: -math.inf, 200: 2.5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", [DEFAULT_SHAPE, TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("name", SETTINGS)
def test_draws_are_those_of_the_plain_sampler(name, shape, device, full):
    vocab = vocabulary(full and shape is DEFAULT_SHAPE)
    rows = 32 if full else 3
    made = [sequence(SETTINGS[name], i, answer=(5, 5, 12, 3)) for i in range(rows)]
    for scale in (0.5, 3.0) if full else (1.5,):
        check(normal(rows, vocab, scale=scale), made, device, shape)


def adversarial(vocab: int) -> dict[str, torch.Tensor]:
    base = normal(1, vocab, seed=4)[0]
    one_hot = torch.full((vocab,), -30.0)
    one_hot[vocab - 3] = 30.0
    ties = torch.randint(0, 4, (vocab,), generator=torch.Generator().manual_seed(1)).float()
    steps = torch.arange(vocab).float() / vocab
    signed = torch.zeros(vocab)
    signed[::2] = -0.0
    two = torch.full((vocab,), -5.0)
    two[[7, vocab - 1]] = 2.0
    close = 1.0 + torch.arange(vocab).flip(0).float() * 2.0**-23
    last_group = torch.full((vocab,), -9.0)
    last_group[-5:] = torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0])
    clustered = base.clone()
    clustered[16:48] += 40
    return {
        "one hot": one_hot,
        "flat": torch.full((vocab,), 2.5),
        "zeros of both signs": signed,
        "ties": ties,
        "steps": steps,
        "two": two,
        "close": close,
        "last group": last_group,
        "clustered": clustered,
        "huge": base * 1e6,
        "negative": base - 500,
    }


@pytest.mark.parametrize("shape", [DEFAULT_SHAPE, TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("name", adversarial(64))
def test_adversarial_rows(name, shape, device, full):
    vocab = vocabulary(full and shape is DEFAULT_SHAPE)
    row = adversarial(vocab)[name]
    wanted = ["greedy", "open", "top-k", "top-p", "wide top-p", "min-p", "all", "top-k 100"]
    wanted += ["tried often", "small top-p", "top-p and min-p"]
    made = [sequence(SETTINGS[w], i) for i, w in enumerate(wanted)]
    check(row.expand(len(made), vocab).contiguous(), made, device, shape)


def test_bad_rows_are_flagged_alone(device):
    rows = normal(7, 300, seed=2)
    rows[1, 299], rows[2, 3], rows[3, 128] = math.nan, math.inf, -math.inf
    none = SamplingParams(temperature=0.9, logit_bias=dict.fromkeys(range(300), -math.inf))
    one = {t: -math.inf for t in range(300) if t != 77}
    params = [OPEN, OPEN, SETTINGS["greedy"], OPEN, none, SamplingParams(logit_bias=one), OPEN]
    made = [sequence(p, i) for i, p in enumerate(params)]
    ids, finite = choose(rows, made, device)
    assert finite == [1, 0, 0, 0, 0, 1, 1]
    assert ids[5] == 77 and ids[1:5] == [0, 0, 0, 0]
    alone = [choose(rows[i : i + 1], [made[i]], device)[0][0] for i in (0, 6)]
    assert alone == [ids[0], ids[6]]


@pytest.mark.parametrize("allowed", [1, 9, 30])
def test_fewer_tokens_than_the_top_k_are_allowed(allowed, device):
    """More than a sorted top-k would be tried for; all paths count only what is not forbidden."""
    bias = {t: -math.inf for t in range(300) if t % 10 or t >= 10 * allowed}
    params = [SamplingParams(3.0, k, p, 0.0, logit_bias=bias) for k in (0, 40, 260, 299) for p in (0.9, 1.0)]
    made = [sequence(p, i) for i, p in enumerate(params)]
    check(normal(len(made), 300, seed=6), made, device)
    check(normal(len(made), 300, seed=7), made, device, TINY)


def test_a_row_does_not_depend_on_its_batch(device, full):
    vocab = vocabulary(full)
    rows = normal(len(SETTINGS), vocab, seed=9)
    made = [sequence(p, i, answer=(5, 5)) for i, p in enumerate(SETTINGS.values())]
    together, _ = choose(rows, made, device)
    for i in range(0, len(made), 1 if full else 7):
        assert choose(rows[i : i + 1], [made[i]], device)[0][0] == together[i]


def test_parts_of_logits_are_added_up_and_rows_may_be_strided(device):
    parts = torch.randn(3, 4, 320, generator=torch.Generator().manual_seed(3))
    made = [
        sequence(p, i) for i, p in enumerate((OPEN, SETTINGS["greedy"], SETTINGS["all"], SETTINGS["edits"]))
    ]
    check(parts[:, :, :301], made, device)
    check(parts, made, device, TINY)


def test_padding_rows_and_slots_out_of_order(device):
    rows = normal(4, 200, seed=5)
    made = [sequence(p, i) for i, p in enumerate((OPEN, SETTINGS["top-p"], SETTINGS["greedy"]))]
    state, lengths = state_of(made, 200, device)
    slots = torch.tensor([2, -1, 0, 1], dtype=torch.int32, device=device)
    rows[1] = math.nan
    ids, finite = sample(rows.to(device)[None], state, slots, lengths)
    want = expected(rows[[2, 3, 0]], made)
    assert ids.tolist() == [want[2], 0, want[0], want[1]] and finite.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("shape", [DEFAULT_SHAPE, TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("name", ["open", "top-p", "min-p", "top-p and min-p", "all"])
def test_frequencies_follow_the_probabilities(name, shape, device, full):
    if not full:
        pytest.skip("thousands of draws need a GPU")
    count, vocab = 8000, 40
    params = SETTINGS[name]
    row = normal(1, vocab, seed=8, scale=1.0)
    made = [sequence(params, i) for i in range(count)]
    ids, _ = choose(row.expand(count, vocab).contiguous(), made, device, shape)
    weight, order = torch.sort(row[0].double(), descending=True)
    weight = ((weight - weight[0]) / params.temperature).exp()
    weight[params.top_k or vocab :] = 0
    keep = (weight.cumsum(0) - weight < params.top_p * weight.sum()) & (weight >= params.min_p)
    share = torch.zeros(vocab, dtype=torch.float64).index_add(0, order, weight * keep)
    wanted = share / share.sum() * count
    drawn = torch.bincount(torch.tensor(ids), minlength=vocab)
    assert not drawn[wanted == 0].any()
    often = wanted >= 5
    chi_square = ((drawn - wanted)[often] ** 2 / wanted[often]).sum()
    freedom = int(often.sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 5


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.0, 0.1, 1.0, 8.0]),
    vocab=st.sampled_from([1, 2, 9, 64, 130]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40]),
    top_p=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    repetition=st.sampled_from([1.0, 1.5]),
    presence=st.sampled_from([0.0, 0.7]),
    banned=st.booleans(),
)
@settings(
    max_examples=60 if torch.cuda.is_available() else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_all_parameters_together(
    device, seed, scale, vocab, temperature, top_k, top_p, min_p, repetition, presence, banned
):
    params = SamplingParams(
        temperature, top_k, top_p, min_p, repetition, 0.0, presence, {0: -math.inf} if banned else {}
    )
    made = [sequence(params, seed + i, answer=(i, 1)) for i in range(2)]
    check(normal(2, vocab, seed, scale), made, device, TINY if seed % 2 else DEFAULT_SHAPE)


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) + 5, (1 << 64) - 1])
def test_random_numbers_are_those_of_the_engine(seed, device):
    vocab = 64
    made = [sequence(OPEN, i, answer=range(i)) for i in range(5)]
    for s in made:
        s.seed = seed
    ids, _ = choose(torch.zeros(5, vocab), made, device)
    assert ids == [int(uniform(seed, len(s.token_ids)) * vocab) for s in made]


def test_replays_of_a_graph_follow_the_state(device, full):
    if not full:
        pytest.skip("graphs need a GPU")
    made = [sequence(p, i) for i, p in enumerate(SETTINGS.values())]
    logits = normal(len(made), 4096).to(device)[None]
    state, lengths = state_of(made, 4096, device)
    slots = torch.arange(len(made), dtype=torch.int32, device=device)
    sample(logits, state, slots, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids, finite = sample(logits, state, slots, lengths)
    for _ in range(20):
        graph.replay()
        eager, _ = sample(logits, state, slots, lengths)
        assert torch.equal(ids, eager) and finite.all()
        lengths += 1
