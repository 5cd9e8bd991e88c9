"""Every family on the kernels against Hugging Face transformers: prompts, chunks and decode rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.model.families import FAMILIES
from kernels.contract import PassLayout
from kernels.triton_operations import BLOCK_SIZE, TritonOperations
from tests.support.family_goldens import FamilyGolden, all_families
from tests.support.goldens import nmse
from tests.support.passes import load_decoder

NMSE_LIMIT = 1e-5
SHARP_LIMIT = 1e-3
"""Of single positions: with random weights scores differ so little or so much that float16's rounding
alone, put into the plain definition, costs up to 1e-4."""
GOLDENS = [golden for golden in all_families() if golden.architecture in FAMILIES]
TABLE = [2, 1]
INTERPRETED = 28
"""Tokens of a prompt where kernels are interpreted: more than the windows of the fixtures."""


class Reader:
    """One sequence whose tokens are read in any chunks."""

    def __init__(self, decoder: Decoder, tokens: list[int]) -> None:
        self.decoder, self.tokens, self.computed = decoder, tokens, 0
        config = decoder.config
        self.kv = decoder.ops.make_kv(config.num_layers, 3, config.num_kv_heads, config.head_dim)
        self.kv.back(3)

    @torch.inference_mode()
    def read(self, count: int) -> Tensor:
        """Logits float32 [vocab] of the last of the next `count` tokens."""
        start, end = self.computed, self.computed + count
        self.computed = end
        slots = [TABLE[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(start, end)]
        decode = int(count == 1 and start > 0)
        layout = PassLayout([count], [end], [TABLE], decode, torch.arange(start, end), torch.tensor(slots))
        device = self.decoder.ops.device
        ids = torch.tensor(self.tokens[start:end], device=device)
        rows = torch.tensor([count - 1], dtype=torch.int32, device=device)
        return self.decoder.forward(ids, layout, self.kv, rows)[0].cpu()


@pytest.fixture
def reader(golden: FamilyGolden, device: str, tmp_path: Path) -> Iterator[Reader]:
    ops = TritonOperations(torch.device(device), "float16")
    made = Reader(load_decoder(golden.write_model(tmp_path), ops), golden.tokens)
    yield made
    made.kv.close()


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_logits_are_those_of_float32(golden: FamilyGolden, reader: Reader, full: bool):
    """A prompt's first part, one row after it, and the rest where that is affordable."""
    known = sorted(golden.expected)
    first = next(at for at in known if at + 1 >= (len(golden.tokens) // 2 if full else INTERPRETED))
    errors = {first: nmse(reader.read(first + 1).numpy(), golden.expected[first])}
    for at in range(first + 1, len(golden.tokens) if full else first + 2):
        logits = reader.read(1)
        if at in golden.expected:
            errors[at] = nmse(logits.numpy(), golden.expected[at])
    ranked = sorted(errors.values())
    assert ranked[len(ranked) // 2] <= NMSE_LIMIT and ranked[-1] <= SHARP_LIMIT, errors
