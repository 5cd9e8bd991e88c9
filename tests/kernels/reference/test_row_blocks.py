"""What is found block by block is what a look at the whole row finds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import row_blocks
from kernels.reference.row_blocks import WIDTH, RowBlocks, place, sums

LENGTHS = st.sampled_from([1, WIDTH - 1, WIDTH, WIDTH + 1, 7 * WIDTH - 1, 7 * WIDTH, 20 * WIDTH + 5])


@pytest.fixture(autouse=True)
def short_rows_by_blocks(monkeypatch):
    monkeypatch.setattr(row_blocks, "_ALL_BELOW", 0)
    monkeypatch.setattr(row_blocks, "_LEAST_SHARE", 0)


@st.composite
def rows(draw) -> torch.Tensor:
    """Few different numbers, so that many are equal; some of them are forbidden tokens."""
    count, length = draw(st.integers(1, 3)), draw(LENGTHS)
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    values = random.integers(-4, 5, (count, length)).astype(np.float32)
    values[random.random((count, length)) < draw(st.sampled_from([0.0, 0.3, 0.95]))] = -np.inf
    return torch.from_numpy(values)


@settings(max_examples=60, deadline=None)
@given(rows(), st.integers(1, 9))
def test_the_largest(values: torch.Tensor, count: int):
    blocks = RowBlocks(values)
    assert blocks.best().tolist() == values.argmax(-1).tolist()
    count = min(count, blocks.maxima.shape[-1])
    found, ids = blocks.top(count)
    assert torch.equal(found, values.topk(count, -1).values)
    assert torch.equal(found, values.gather(-1, ids))
    for row, taken in zip(values, ids, strict=True):
        # Where fewer are left than are asked for, what stands for the others has no weight.
        allowed = taken[row[taken] > -torch.inf].tolist()
        assert len(set(allowed)) == len(allowed)


@settings(max_examples=60, deadline=None)
@given(rows(), st.floats(0, 1, exclude_max=True))
def test_the_place_of_a_share(values: torch.Tensor, share: float):
    weight = values.to(torch.float64).exp()
    weight[:, 0] += (weight.sum(-1) == 0).to(torch.float64)
    running = weight.cumsum(-1).numpy()
    found = place(weight, torch.full((len(weight),), share, dtype=torch.float64), sums(weight))
    for row, total, at in zip(weight.numpy(), running, found.tolist(), strict=True):
        assert row[at] > 0
        wanted, slack = share * total[-1], 1e-12 * total[-1]
        assert total[at] >= wanted - slack and total[at] - row[at] <= wanted + slack


@pytest.mark.parametrize("share", [0.0, 1 - 2**-53])
def test_the_ends_of_a_row_meet_no_weight_of_zero(share):
    weight = torch.zeros(1, 5 * WIDTH + 3, dtype=torch.float64)
    weight[0, WIDTH + 2] = weight[0, 3 * WIDTH] = 0.1
    found = place(weight, torch.tensor([share], dtype=torch.float64))
    assert found.tolist() == [WIDTH + 2 if share == 0 else 3 * WIDTH]
