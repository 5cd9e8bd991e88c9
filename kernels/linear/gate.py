"""Gates as kernels of their own: activation(gate) * up of a feed-forward part, and x * σ(gate)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contract import Activation
from kernels.cuda.activations import SUM_WIDTH, Activations

_BLOCK = 1024
_SUM = tl.constexpr(SUM_WIDTH)
_LARGEST = tl.constexpr(65504.0)


def gate_activations(
    gate_up: Tensor, activation: Activation = "silu", gated: bool = True, scale: float = 1.0
) -> Activations:
    """activation(gate) * up * scale of the output of a gated linear whose rows lie in pairs.

    gate_up [S, M, 2 F] float32, or float16 of what is times scale, added up over S in index order; column
    2 i is gate i, column 2 i + 1 is up i. Not gated, all columns are up, and activation(up) * scale is
    computed. Grid: M by blocks of 1,024 columns; each input is read once.

    → values float16 [M, F], held to float16's range, and their sums of 16.
    """
    splits, rows, width = gate_up.shape
    features = width // 2 if gated else width
    values = torch.empty((rows, features), dtype=torch.float16, device=gate_up.device)
    groups = triton.cdiv(features, SUM_WIDTH)
    sums = torch.empty((rows, groups), dtype=torch.float32, device=gate_up.device)
    block = min(_BLOCK, max(SUM_WIDTH, triton.next_power_of_2(features)))
    if rows:
        _gate[(rows, triton.cdiv(features, block))](
            gate_up,
            values,
            sums,
            rows,
            F=features,
            SPLITS=splits,
            ACTIVATION=activation,
            GATED=gated,
            SCALE=scale,
            GROUPS=groups,
            WIDTH=SUM_WIDTH,
            BLOCK=block,
            num_warps=4,
        )
    return Activations(values, sums)


@triton.jit
def activated(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """The activation of float32 values."""
    if ACTIVATION == "relu2":
        positive = tl.maximum(x, 0.0)
        return positive * positive
    if ACTIVATION == "gelu":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x * tl.sigmoid(x)


@triton.jit
def gated_value(gate: tl.tensor, up: tl.tensor, ACTIVATION: tl.constexpr, SCALE: tl.constexpr) -> tl.tensor:
    """activation(gate) * up * SCALE in float32, held to float16's range."""
    if ACTIVATION == "swiglu_oai":
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0
        product = gate * tl.sigmoid(1.702 * gate) * up
    else:
        product = activated(gate, ACTIVATION) * up
    return held(product * SCALE)


@triton.jit
def held(x: tl.tensor) -> tl.tensor:
    """float32 values held to float16's range."""
    return tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST)


@triton.jit
def store_gated(
    acc: tl.tensor,
    values: tl.tensor,
    sums: tl.tensor,
    block: tl.tensor,
    token: tl.tensor,
    live: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    BN: tl.constexpr,
    BM: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALE: tl.constexpr,
) -> None:
    """The gated product of acc [BN, BM], rows in pairs, to rows `token` [BM] of values where they are `live`.

    block: which BN rows these are; width: features in all; stride: from one row of values to the next.
    The sums of 16 go with them.
    """
    gate, up = tl.split(tl.permute(tl.reshape(acc, (BN // 2, 2, BM)), (0, 2, 1)))
    feature = block * (BN // 2) + tl.arange(0, BN // 2)
    inside = (feature < width)[:, None]
    product = tl.where(inside, gated_value(gate, up, ACTIVATION, SCALE), 0.0).to(tl.float16)
    tl.store(values + token[None, :] * stride + feature[:, None], product, mask=live[None, :] & inside)
    added = tl.sum(tl.reshape(product.to(tl.float32), (BN // 2 // _SUM, _SUM, BM)), axis=1)
    groups = tl.cdiv(width, _SUM)
    group = block * (BN // 2 // _SUM) + tl.arange(0, BN // 2 // _SUM)
    kept = live[None, :] & (group < groups)[:, None]
    tl.store(sums + token[None, :] * groups + group[:, None], added, mask=kept)


@triton.jit(do_not_specialize=["rows"])
def _gate(
    gate_up: tl.tensor,
    values: tl.tensor,
    sums: tl.tensor,
    rows: int,
    F: tl.constexpr,
    SPLITS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    TIMES: tl.constexpr = 2 if GATED else 1
    both = start * TIMES + tl.arange(0, TIMES * BLOCK)
    total = tl.load(gate_up + row * (TIMES * F) + both, mask=both < TIMES * F, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        source = gate_up + (split * rows + row) * (TIMES * F) + both
        total += tl.load(source, mask=both < TIMES * F, other=0.0).to(tl.float32)
    if gate_up.dtype.element_ty == tl.float16:
        # A product in float16 may have overflowed, and -inf * sigmoid(-inf) is not a number.
        total = held(total) * (1.0 / SCALE)
    if GATED:
        gate, up = tl.split(tl.reshape(total, (BLOCK, 2)))
        product = gated_value(gate, up, ACTIVATION, SCALE).to(tl.float16)
    else:
        product = held(activated(total, ACTIVATION) * SCALE).to(tl.float16)
    _store(values, sums, product, row, start, F, GROUPS, WIDTH, BLOCK)


@triton.jit
def _store(
    values: tl.tensor,
    sums: tl.tensor,
    product: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    F: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """BLOCK float16 columns of a row from `start` on, 0 behind the last of F, and their sums."""
    column = start + tl.arange(0, BLOCK)
    tl.store(values + row * F + column, product, mask=column < F)
    added = tl.sum(tl.reshape(product.to(tl.float32), (BLOCK // WIDTH, WIDTH)), axis=1)
    group = start // WIDTH + tl.arange(0, BLOCK // WIDTH)
    tl.store(sums + row * GROUPS + group, added, mask=group < GROUPS)


def sigmoid_gate(x: Activations, gate: Tensor) -> Activations:
    """x * σ(gate): gate float32 or float16 [S, M, F], added up over S in index order; grid as above."""
    splits, rows, features = gate.shape
    values, sums = torch.empty_like(x.values), torch.empty_like(x.sums)
    block = min(_BLOCK, max(SUM_WIDTH, triton.next_power_of_2(features)))
    if rows:
        _sigmoid_gate[(rows, triton.cdiv(features, block))](
            x.values,
            gate,
            values,
            sums,
            rows,
            F=features,
            SPLITS=splits,
            GROUPS=x.sums.shape[1],
            WIDTH=SUM_WIDTH,
            BLOCK=block,
            num_warps=4,
        )
    return Activations(values, sums)


@triton.jit(do_not_specialize=["rows"])
def _sigmoid_gate(
    x: tl.tensor,
    gate: tl.tensor,
    values: tl.tensor,
    sums: tl.tensor,
    rows: int,
    F: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Bytes per row: F * (2 + 4 splits) read, 2 F + F / 4 written."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    column = start + tl.arange(0, BLOCK)
    inside = column < F
    total = tl.load(gate + row * F + column, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(gate + (split * rows + row) * F + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * F + column, mask=inside, other=0.0).to(tl.float32)
    product = (value * tl.sigmoid(total)).to(tl.float16)
    _store(values, sums, product, row, start, F, GROUPS, WIDTH, BLOCK)
