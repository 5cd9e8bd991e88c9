"""A CPU's pages hold what a GPU's do: the same quants and scales, a head's one after another."""

import pytest
import torch

from kernels.attention.rope_append import rope_append
from kernels.attention.shape import AttentionShape
from kernels.contract import LayerAttention, PassLayout, Rotation
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from tests.kernels.attention.attention_cases import make_tables, poisoned_kv

TOKENS, BLOCK = 20, 16


@pytest.mark.parametrize("kind", [CPUOperations, TorchOperations])
@pytest.mark.parametrize("dim", [64, 80])
def test_q8_0_is_written_alike(dim: int, kind: type[TorchOperations]):
    torch.manual_seed(dim)
    shape = AttentionShape(4, 2, dim, BLOCK, dim**-0.5)
    tables, blocks = make_tables([TOKENS], [TOKENS], 0, BLOCK, "cpu")
    # Without angles, so that sines and cosines differ in no last digit.
    rotation = Rotation(torch.zeros(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    qkv = torch.randn(TOKENS, 8 * dim)
    pages = poisoned_kv(shape, blocks, "q8_0", "cpu").layer(1)
    rope_append(qkv[None], tables, pages, shape, rotation)
    ops = kind(torch.device("cpu"), "float32", "q8_0", BLOCK)
    kv = ops.make_kv(1, blocks, 2, dim)
    # As a row with drafts, which the compiled kernel serves.
    layout = PassLayout(
        [TOKENS], [TOKENS], tables.block_tables.tolist(), 1, tables.positions.long(), tables.slots
    )
    ops.attend(qkv.clone(), ops.prepare([layout], [kv], [rotation]), 0, LayerAttention(0, dim**-0.5))
    for ours, theirs in ((kv.layers[0].values, pages.values), (kv.layers[0].scales, pages.scales)):
        # [block, key or value, head, offset, …] → [key or value and head, slot, …]
        wanted = theirs.permute(1, 2, 0, 3, 4).reshape(4, blocks * BLOCK, -1)
        assert torch.equal(ours[:, tables.slots], wanted[:, tables.slots])
