"""Log-probabilities against the plain ones."""

import math

import pytest
import torch

from kernels.sampler_logprobs import log_probabilities, log_probabilities_torch
from kernels.sampling.sampler import DEFAULT_SHAPE, SamplerShape

TINY = SamplerShape(group=8, small=8, capacity=16)


def parts(splits: int, rows: int, vocab: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(splits, rows, vocab, generator=torch.Generator().manual_seed(vocab)) * scale


def check(logits: torch.Tensor, chosen: list[int], top: int, device: str, shape=DEFAULT_SHAPE) -> None:
    logits = logits.to(device)
    ids = torch.tensor(chosen, dtype=torch.int32, device=device)
    of_chosen, best, of_best = log_probabilities(logits, ids, top, shape)
    wanted_chosen, wanted, of_wanted = log_probabilities_torch(logits, ids, top)
    torch.testing.assert_close(of_chosen, wanted_chosen, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(of_best, of_wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    sound = of_wanted == of_wanted
    assert torch.equal(best[sound], wanted[sound])


@pytest.mark.parametrize("shape", [DEFAULT_SHAPE, TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
@pytest.mark.parametrize("splits", [1, 3])
def test_chosen_and_best(splits, top, shape, device, full):
    vocab = 151_936 if full and shape is DEFAULT_SHAPE else 301
    check(parts(splits, 3, vocab), [0, vocab - 1, 77], top, device, shape)


@pytest.mark.parametrize("shape", [DEFAULT_SHAPE, TINY], ids=["default", "tiny"])
def test_ties_go_by_id_and_bad_rows_are_nan(shape, device):
    logits = torch.randint(0, 3, (1, 4, 100), generator=torch.Generator().manual_seed(2)).float()
    logits[0, 1] = -0.0
    logits[0, 1, 50:] = 0.0
    logits[0, 2, 5] = math.nan
    logits[0, 3] = -800.0
    logits[0, 3, 99] = 800.0
    check(logits, [3, 99, 4, 99], 20, device, shape)


def test_a_vocabulary_smaller_than_the_list(device):
    logits = torch.tensor([[[0.0, 1.0, 2.0]]], device=device)
    chosen, best, of_best = log_probabilities(logits, torch.zeros(1, dtype=torch.int32, device=device), 5)
    assert best.tolist() == [[2, 1, 0, -1, -1]]
    assert of_best[0, 3:].tolist() == [-math.inf, -math.inf]
    assert chosen[0] == of_best[0, 2]
