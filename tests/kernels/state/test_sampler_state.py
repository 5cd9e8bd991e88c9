"""What rows that are held to something are let have."""

import pytest
import torch

from kernels.masks import mask_bias
from kernels.state.sampler_state import SamplerState


@pytest.mark.parametrize("vocab", [30, 1056, 2500])
def test_masks_forbid_all_tokens_but_those_whose_bits_are_set(device, vocab):
    state = SamplerState.create(5, vocab, device)
    before = torch.rand(5, vocab)
    state.bias.copy_(before)
    generator = torch.Generator().manual_seed(vocab)
    words = torch.randint(-(1 << 31), 1 << 31, (3, -(-vocab // 32)), generator=generator).to(torch.int32)
    slots = torch.tensor([4, -1, 1], dtype=torch.int32, device=device)
    state.set_masks(slots, words.to(device))
    state.add_bias(1, {0: 0.5, vocab - 1: -2.0, vocab: 7.0})
    expected = before.clone()
    expected[[4, 1]] = mask_bias(words[[0, 2]], vocab)
    expected[1, 0] += 0.5
    expected[1, vocab - 1] -= 2.0
    assert torch.equal(state.bias.cpu(), expected)
