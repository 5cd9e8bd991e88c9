"""RMS norms over runs of columns of a linear's output, wider than one head."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 8


def norm_columns(output: Tensor, norms: Sequence[tuple[Tensor, float]]) -> Tensor:
    """One norm over the first columns, the next over those behind it, and so on; the rest is added up alone.

    output float32 or float16 [S, T, W], added up over S in index order; norms: weight float32 [N] and eps,
    of N columns each. Grid (tokens,) for each run: a row's result does not depend on other rows.

    → float32 [1, T, W].
    """
    splits, tokens, width = output.shape
    out = torch.empty((1, tokens, width), dtype=torch.float32, device=output.device)
    rest = width - sum(weight.shape[0] for weight, _ in norms)
    runs: list[tuple[Tensor | None, int, float]] = [(weight, weight.shape[0], eps) for weight, eps in norms]
    first = 0
    for scale, count, eps in [*runs, (None, rest, 0.0)]:
        if not tokens or not count:
            continue
        _norm_columns[(tokens,)](
            output,
            out,
            output if scale is None else scale,
            tokens,
            eps,
            FIRST=first,
            COUNT=count,
            WIDTH=width,
            SPLITS=splits,
            NORMED=scale is not None,
            BLOCK=triton.next_power_of_2(count),
            num_warps=_WARPS,
        )
        first += count
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def _norm_columns(
    source: tl.tensor,
    out: tl.tensor,
    weight: tl.tensor,
    num_tokens: tl.tensor,
    eps: tl.tensor,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Grid (tokens,): one program holds COUNT columns of a row in registers.

    Bytes per row: COUNT * 4 splits (half for float16) and the weights read, 4 COUNT written.
    """
    place = tl.program_id(0).to(tl.int64) * WIDTH + FIRST
    column = tl.arange(0, BLOCK)
    inside = column < COUNT
    step = num_tokens.to(tl.int64) * WIDTH
    x = tl.load(source + place + column, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        x += tl.load(source + split * step + place + column, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        root = tl.sqrt_rn(tl.sum(x * x, axis=0) / COUNT + eps)
        x = x / root * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + place + column, x, mask=inside)
