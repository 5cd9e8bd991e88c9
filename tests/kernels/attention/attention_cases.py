"""Packed passes over paged KV with poisoned pages, for the attention tests."""

import torch

from kernels.attention.shape import AttentionShape
from kernels.contract import Rotation
from kernels.cuda.activations import Activations, PassTables
from kernels.kv.pages import TritonKV
from tests.kernels.kv_cases import make_kv

SMALL = AttentionShape(q_heads=4, kv_heads=2, head_dim=32, block_size=16, scale=32**-0.5)
REAL = AttentionShape(q_heads=32, kv_heads=8, head_dim=128, block_size=64, scale=128**-0.5)
LONG_HEADS = AttentionShape(
    q_heads=8, kv_heads=1, head_dim=512, block_size=64, scale=512**-0.5, norms_values=True
)


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (actual.double() - expected.double()).norm()
    return float(difference / expected.double().norm())


def make_tables(
    queries: list[int],
    contexts: list[int],
    num_decode: int,
    block_size: int,
    device: str,
    padding_tokens: int = 0,
    seed: int = 0,
    width: int | None = None,
) -> tuple[PassTables, int]:
    """Tables with shuffled blocks, and how many blocks they need (block 0 is scratch)."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-context // block_size) for context in contexts]
    num_blocks = 1 + sum(needed)
    order = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
    tables = torch.zeros(len(contexts), width or max([1, *needed]), dtype=torch.int32)
    positions, slots = [], []
    for i, (query, context) in enumerate(zip(queries, contexts, strict=True)):
        blocks = [order.pop() for _ in range(needed[i])]
        tables[i, : needed[i]] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(context - query, context):
            positions.append(max(position, 0))
            slots.append(
                blocks[position // block_size] * block_size + position % block_size if context else 0
            )
    positions += [0] * padding_tokens
    slots += [0] * padding_tokens
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    return PassTables(
        query_starts=starts.to(device),
        context_lens=torch.tensor(contexts, dtype=torch.int32).to(device),
        block_tables=tables.to(device),
        positions=torch.tensor(positions, dtype=torch.int32).to(device),
        slots=torch.tensor(slots, dtype=torch.int64).to(device),
        num_decode=num_decode,
        num_tokens=len(positions),
    ), num_blocks


def poisoned_kv(shape: AttentionShape, num_blocks: int, kv_format: str, device: str) -> TritonKV:
    """Pages whose unwritten slots hold NaN, or the largest quants."""
    kv = make_kv(2, num_blocks, shape.kv_heads, shape.head_dim, shape.block_size, kv_format, device)
    kv.values.fill_(127 if kv.scales is not None else float("nan"))
    if kv.scales is not None:
        kv.scales.fill_(float("nan"))
    return kv


def fill_contexts(kv: TritonKV, tables: PassTables, shape: AttentionShape, seed: int = 1) -> None:
    """Random keys and values in every slot of every context of layer 1, none elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    layer = kv.layer(1)
    for table, context in zip(tables.block_tables.tolist(), tables.context_lens.tolist(), strict=True):
        for tile in range(-(-context // shape.block_size)):
            count = min(shape.block_size, context - tile * shape.block_size)
            size = (2, shape.kv_heads, count, shape.head_dim)
            if layer.scales is None:
                new = torch.randn(size, generator=generator)
                layer.values[table[tile], :, :, :count] = new.to(layer.values)
            else:
                quants = torch.randint(-127, 128, size, generator=generator, dtype=torch.int8)
                layer.values[table[tile], :, :, :count] = quants.to(layer.values)
                scales = torch.rand(*size[:3], -(-shape.head_dim // 32), generator=generator) / 40
                layer.scales[table[tile], :, :, :count] = scales.to(layer.scales)


def random_queries(
    tokens: int, shape: AttentionShape, device: str, seed: int = 2, kv: TritonKV | None = None
) -> torch.Tensor:
    """q as `rope_append` gives it beside such KV: already times the scale and log2(e)."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(tokens, shape.q_heads, shape.head_dim, generator=generator)
    wide = kv is not None and kv.values.dtype is torch.float32
    return (q * shape.q_scale).to(torch.float32 if wide else torch.float16).to(device)


def poisoned_output(tokens: int, shape: AttentionShape, device: str) -> Activations:
    width = shape.q_heads * shape.head_dim
    return Activations(
        torch.full((tokens, width), float("nan"), dtype=torch.float16, device=device),
        torch.full((tokens, -(-width // 16)), float("nan"), device=device),
    )


def check_sums(actual: Activations, rows: slice = slice(None)) -> None:
    values = actual.values[rows].double()
    expected = torch.nn.functional.pad(values, (0, -values.shape[1] % 16)).unflatten(1, (-1, 16)).sum(-1)
    torch.testing.assert_close(actual.sums[rows].double(), expected, rtol=1e-5, atol=1e-4)


def make_rotation(shape: AttentionShape, pairing: str, device: str, pairs: int | None = None) -> Rotation:
    pairs = shape.head_dim // 2 if pairs is None else pairs
    inv_freq = 1e6 ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    return Rotation(inv_freq.to(device), 1.0, pairing)
