"""CPU attention against the plain formula: tables, mixtures, element types, slots never written."""

import pytest
import torch
from torch import Tensor

from kernels.contract import PassLayout
from kernels.quant.formats import KVFormat
from kernels.reference.attention import GATHER_LIMIT, attend, plan_attention
from kernels.reference.paged_kv import make_paged_kv

BLOCK, KV_HEADS, GROUPS, DIM = 8, 2, 3, 16
HEADS = KV_HEADS * GROUPS
SCALE = DIM**-0.5


def tables(contexts: list[int], scattered: bool) -> tuple[list[list[int]], int]:
    counts = [-(-context // BLOCK) for context in contexts]
    order = torch.arange(1, sum(counts) + 1)
    if scattered:
        order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(3))]
    numbers = order.tolist()
    return [[numbers.pop(0) for _ in range(count)] for count in counts], sum(counts) + 1


def run(
    spans: list[tuple[int, int]], num_decode: int, scattered: bool, kind: KVFormat
) -> tuple[Tensor, Tensor]:
    """spans: (new tokens, context). Returns (ours, the formula's), every unwritten slot NaN."""
    made = torch.Generator().manual_seed(11)
    contexts = [context for _, context in spans]
    block_tables, blocks = tables(contexts, scattered)
    layer = make_paged_kv(1, blocks, KV_HEADS, DIM, BLOCK, kind, torch.device("cpu")).layers[0]
    (layer.values if layer.scales is None else layer.scales)[:, BLOCK:] = float("nan")
    positions, slots, expected, queries = [], [], [], []
    for (new, context), table in zip(spans, block_tables, strict=True):
        written = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)])
        layer.write(written, torch.randn(2 * KV_HEADS, context, DIM, generator=made))
        kv = layer.read(written, torch.float32)
        q = torch.randn(new, HEADS, DIM, generator=made)
        queries.append(q)
        expected.append(plain(q, kv, context - new))
        positions += range(context - new, context)
        slots += written[context - new :].tolist()
    layout = PassLayout(
        [new for new, _ in spans],
        contexts,
        block_tables,
        num_decode,
        torch.tensor(positions),
        torch.tensor(slots),
    )
    plan = plan_attention(layout, BLOCK, torch.empty(0))
    return attend(torch.cat(queries), layer, KV_HEADS, plan, SCALE), torch.cat(expected)


def plain(q: Tensor, kv: Tensor, start: int) -> Tensor:
    """Token by token and head by head."""
    out = torch.empty(q.shape[0], HEADS, DIM)
    for token in range(q.shape[0]):
        seen = start + token + 1
        for head in range(HEADS):
            keys, values = kv[head // GROUPS, :seen], kv[KV_HEADS + head // GROUPS, :seen]
            out[token, head] = torch.softmax(keys @ q[token, head] * SCALE, 0) @ values
    return out.view(q.shape[0], -1)


MIXES = {
    "short rows": ([(1, 3), (1, 17), (1, 1), (1, 8)], 4),
    "a long row alone": ([(1, GATHER_LIMIT + 9)], 1),
    "long between short": ([(1, 5), (1, GATHER_LIMIT + 1), (1, GATHER_LIMIT), (1, 30)], 4),
    "long before short": ([(1, GATHER_LIMIT + 40), (1, 9)], 2),
    "rows beside chunks": ([(1, 20), (1, 210), (13, 13), (9, 40), (1, 6)], 2),
    "chunks only": ([(16, 16), (5, 21)], 0),
    "a chunk of one token": ([(1, 33)], 0),
}


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_every_mixture_equals_the_formula(mix: str, scattered: bool):
    ours, expected = run(*MIXES[mix], scattered, "float32")
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "q8_0"])
@pytest.mark.parametrize("mix", ["long between short", "rows beside chunks"])
def test_small_kv_types_lose_only_what_storing_loses(mix: str, kind: KVFormat):
    ours, expected = run(*MIXES[mix], True, kind)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-6)
