"""Every family on the kernels against Hugging Face transformers: prompts, chunks and decode rows."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.decoder import Decoder
from engine.model.families import FAMILIES
from kernels.contract import PassLayout
from kernels.cuda.activations import SUM_WIDTH
from kernels.triton_operations import BLOCK_SIZE, TritonOperations
from tests.support.family_goldens import FamilyGolden, all_families
from tests.support.goldens import nmse
from tests.support.passes import load_decoder, open_kv

NMSE_LIMIT = 1e-4
"""Of half of the positions: float16's rounding alone, put into the plain definition, costs up to 2e-5."""
SHARP_LIMIT = 1e-3
"""Of every position: with random weights scores differ so little or so much that it costs up to 3e-4."""
ROUTE_LIMIT = 2e-2
"""The same where there are experts: at one position in ten it may choose another one."""
COVERED_ELSEWHERE = {"qwen2", "qwen3"}
"""`test_gpu_engine` compares these with the definition."""
TABLE = [2, 1]
INTERPRETED = 22
"""Tokens of a first part where kernels are interpreted: more than the windows of the fixtures."""


def has_kernels(golden: FamilyGolden) -> bool:
    """Whether the attention kernels serve heads of this model's size."""
    with TemporaryDirectory() as folder, open_gguf(golden.write_model(Path(folder))) as file:
        return all(group.shape.head_dim % SUM_WIDTH == 0 for group in read_config(file).kv_groups)


GOLDENS = [golden for golden in all_families() if golden.architecture in FAMILIES and has_kernels(golden)]


class Reader:
    """One sequence whose tokens are read in any chunks."""

    def __init__(self, decoder: Decoder, tokens: list[int]) -> None:
        self.decoder, self.tokens, self.computed = decoder, tokens, 0
        self.kv = open_kv(decoder, 3)

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
        return self.decoder.forward(
            ids, self.kv.by_group([layout] * self.kv.num_pools), self.kv.groups, rows
        )[0].cpu()


@pytest.fixture
def reader(golden: FamilyGolden, device: str, tmp_path: Path) -> Iterator[Reader]:
    ops = TritonOperations(torch.device(device), "float16")
    made = Reader(load_decoder(golden.write_model(tmp_path), ops), golden.tokens)
    yield made
    made.kv.close()


def test_every_architecture_has_a_fixture():
    assert FAMILIES.keys() - COVERED_ELSEWHERE <= {golden.architecture for golden in GOLDENS}


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_logits_are_those_of_float32(golden: FamilyGolden, reader: Reader, full: bool):
    """A prompt's first part, a chunk, one row after it, and the rest where that is affordable."""
    known = sorted(golden.expected)
    least = len(golden.tokens) // 2 if full else INTERPRETED
    first, second = [at for at in known if at + 1 >= least][:2]
    rows = len(golden.tokens) - second if full else 1
    errors = {}
    for count in (first + 1, second - first - 1, *[1] * rows):
        logits = reader.read(count)
        position = reader.computed - 1
        if position in golden.expected:
            errors[position] = nmse(logits.numpy(), golden.expected[position])
    ranked = sorted(errors.values())
    routed = any(layer.experts is not None for layer in reader.decoder.config.layers)
    sharp = ROUTE_LIMIT if routed else SHARP_LIMIT
    assert ranked[(len(ranked) - 1) // 2] <= NMSE_LIMIT and ranked[-1] <= sharp, errors
