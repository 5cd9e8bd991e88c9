"""Attention of prompts by compiled kernels against the definition, with all that a layer may ask of it."""

from itertools import accumulate

import pytest
import torch

pytest.importorskip("llvmlite")

from kernels.contract import LayerAttention, PassLayout, Rotation
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from kernels.reference.paged_kv import LayerKV

CPU = torch.device("cpu")
BLOCK = 16


def a_pass(lens: list[int], contexts: list[int], decoding: int, tables: list[list[int]]) -> PassLayout:
    """The last `lens` tokens of sequences that are `contexts` long."""
    positions = [list(range(end - count, end)) for count, end in zip(lens, contexts, strict=True)]
    slots = [
        table[at // BLOCK] * BLOCK + at % BLOCK
        for table, own in zip(tables, positions, strict=True)
        for at in own
    ]
    flat = torch.tensor([at for own in positions for at in own])
    return PassLayout(lens, contexts, tables, decoding, flat, torch.tensor(slots))


def some_tables(contexts: list[int]) -> tuple[list[list[int]], int]:
    """Blocks in no order, and how many there are."""
    count = sum(-(-context // BLOCK) for context in contexts) + 1
    numbers = (torch.randperm(count - 1) + 1).tolist()
    return [[numbers.pop() for _ in range(-(-context // BLOCK))] for context in contexts], count


def fill(layer: LayerKV, values: torch.Tensor) -> None:
    """All slots, NaN where nothing was written."""
    layer.write(torch.arange(values.shape[1]), values)


def relative(made: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference beside the largest value."""
    return float((made - expected).abs().max() / expected.abs().max())


KINDS = {
    "plain": {},
    "window": {"window": 37},
    "wide window": {"window": 1000},
    "cap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all": {"window": 50, "softcap": 2.0, "sinks": True, "temperature": 0.1, "temperature_length": 20},
}


@pytest.mark.parametrize("asked", KINDS)
@pytest.mark.parametrize(
    ("dim", "heads", "kv_dtype"),
    [
        (64, (2, 4), "float32"),
        (80, (1, 7), "float32"),
        (128, (2, 2), "float16"),
        (96, (1, 17), "float32"),
        (64, (1, 32), "q8_0"),
        (256, (2, 10), "bfloat16"),
    ],
)
def test_prompts_equal_definition(dim: int, heads: tuple[int, int], kv_dtype: str, asked: str):
    torch.manual_seed(dim)
    kv_heads, q_heads = heads
    lens, contexts, decoding = [1, 3, 65, 2, 96, 1], [70, 33, 65, 130, 151, 1], 2
    tables, blocks = some_tables(contexts)
    layout = a_pass(lens, contexts, decoding, tables)
    before = torch.full((2 * kv_heads, blocks * BLOCK, dim), float("nan"))
    before[:, :BLOCK] = 0
    for table, context, count in zip(tables, contexts, lens, strict=True):
        for at in range(context - count):
            before[:, table[at // BLOCK] * BLOCK + at % BLOCK] = torch.randn(2 * kv_heads, dim)
    qkv = torch.randn(sum(lens), (q_heads + 2 * kv_heads) * dim)
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    results, written, weight = [], [], torch.rand(q_heads + kv_heads, dim) + 0.5
    for kind in (CPUOperations, TorchOperations):
        ops = kind(CPU, "float32", kv_dtype, BLOCK)
        kv = ops.make_kv(1, blocks, kv_heads, dim)
        fill(kv.layers[0], before)
        norm = ops.make_norm(weight, 1e-6)
        own = dict(KINDS[asked])
        own["sinks"] = ops.make_vector(torch.linspace(-1, 2, q_heads)) if own.pop("sinks", False) else None
        attention = LayerAttention(0, dim**-0.5, qk_norm=norm, norm_rotated=asked == "all", **own)
        results.append(ops.attend(qkv.clone(), ops.prepare([layout], [kv], [rotation]), 0, attention))
        written.append(kv.layers[0].read(layout.slot_mapping, torch.float32))
    assert relative(*results) < (3e-6 if kv_dtype == "float32" else 2e-3)
    assert relative(*written) < (1e-6 if kv_dtype == "float32" else 2e-3)


@pytest.mark.parametrize("window", [0, 60])
def test_a_prompt_in_chunks_has_the_same_bits(window: int):
    """Chunks of so few tokens too that their pass is a quick one."""
    torch.manual_seed(0)
    dim, (kv_heads, q_heads), length = 64, (2, 6), 150
    tables, blocks = some_tables([length])
    qkv = torch.randn(length, (q_heads + 2 * kv_heads) * dim)
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    results = []
    for sizes in ([150], [5, 35, 61, 49]):
        ops = CPUOperations(CPU, "float32", "float32", BLOCK)
        kv, parts = ops.make_kv(1, blocks, kv_heads, dim), []
        for first, end in zip([0, *accumulate(sizes)], accumulate(sizes), strict=False):
            prepared = ops.prepare([a_pass([end - first], [end], 0, tables)], [kv], [rotation])
            attention = LayerAttention(0, dim**-0.5, window=window)
            parts.append(ops.attend(qkv[first:end].clone(), prepared, 0, attention))
        results.append(torch.cat(parts))
    assert torch.equal(*results)


def test_blocks_behind_a_window_are_not_read():
    torch.manual_seed(0)
    dim, length, window = 64, 200, 40
    tables, blocks = some_tables([length])
    qkv, results = torch.randn(60, 4 * dim), []
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    before = torch.randn(2, blocks * BLOCK, dim)
    for freed in (0, (length - 60 - window + 1) // BLOCK):
        ops = CPUOperations(CPU, "float32", "float32", BLOCK)
        kv = ops.make_kv(1, blocks, 1, dim)
        fill(kv.layers[0], before)
        for block in tables[0][:freed]:
            kv.layers[0].values[:, block * BLOCK : (block + 1) * BLOCK] = float("nan")
        kv.layers[0].values[:, :BLOCK] = float("nan")
        layout = a_pass([60], [length], 0, [[0] * freed + tables[0][freed:]])
        prepared = ops.prepare([layout], [kv], [rotation])
        results.append(ops.attend(qkv.clone(), prepared, 0, LayerAttention(0, 0.1, window=window)))
    assert torch.equal(*results)
    assert results[0].isfinite().all()
