"""How attention kernels read tiles of a KV block of one head, and write one token's keys and values.

Unwritten slots hold anything, NaN included: scores of their keys are discarded by whoever computes
them, their values are read as 0, since 0 · NaN is NaN.
"""

import triton
import triton.language as tl


@triton.jit
def product(a: tl.tensor, b: tl.tensor, added: tl.tensor | None, FAST: tl.constexpr) -> tl.tensor:
    """a · b + added, in float32; float32 operands to their last digits."""
    if a.dtype == tl.float32:
        result = tl.dot(a, b, added, input_precision="tf32x3" if FAST else "ieee")
    else:
        result = tl.dot(a, b, added)
    return result


@triton.jit
def load_tile(
    values: tl.tensor,
    scales: tl.tensor,
    page: tl.tensor,
    scale_page: tl.tensor,
    written: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUANTIZED: tl.constexpr,
    MASKED: tl.constexpr,
    DIM_FIRST: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """The keys or values of a block [BLOCK_SIZE, DIM], or [DIM, BLOCK_SIZE] with DIM_FIRST.

    float32 pages stay float32, others give float16.

    page, scale_page: int64 offsets of the first one and of its first scale; MASKED reads 0 where not
    `written` [BLOCK_SIZE].
    """
    slot = tl.arange(0, BLOCK_SIZE)
    if QUANTIZED:
        tile = _dequantize(values, scales, page, scale_page, slot, written, HEAD_DIM, DIM, FAST)
        if DIM_FIRST:
            tile = tl.trans(tile)
    else:
        # Made in the order that is wanted: a transposed tile would not be copied ahead of its use.
        axis: tl.constexpr = 0 if DIM_FIRST else 1
        d = tl.expand_dims(tl.arange(0, DIM), 1 - axis)
        place = values + page + tl.expand_dims(slot, axis) * HEAD_DIM + d
        if MASKED:
            inside = tl.expand_dims(written, axis) & (d < HEAD_DIM)
            tile = tl.load(place, mask=inside, other=0.0)
        elif HEAD_DIM == DIM:
            tile = tl.load(place)
        else:
            tile = tl.load(place, mask=d < HEAD_DIM, other=0.0)
        tile = tile.to(tl.float32 if values.dtype.element_ty == tl.float32 else tl.float16)
    return tile


@triton.jit
def _dequantize(
    values: tl.tensor,
    scales: tl.tensor,
    page: tl.tensor,
    scale_page: tl.tensor,
    slot: tl.tensor,
    written: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """q8_0 slots [N] → float16 [N, DIM], 0 where not written."""
    count: tl.constexpr = slot.shape[0]
    groups: tl.constexpr = (HEAD_DIM + 31) // 32
    group = tl.arange(0, DIM // 32)
    inside = written[:, None] & (group[None, :] < groups)
    d = group[None, :, None] * 32 + tl.arange(0, 32)[None, None, :]
    kept = inside[:, :, None]
    if HEAD_DIM % 32 != 0:
        kept = kept & (d < HEAD_DIM)
    quants = tl.load(values + page + slot[:, None, None] * HEAD_DIM + d, mask=kept, other=0)
    scale_place = scales + scale_page + slot[:, None] * groups + group[None, :]
    scale = tl.load(scale_place, mask=inside, other=0.0)
    return tl.reshape(_to_float16(quants, FAST) * scale[:, :, None], (count, DIM))


@triton.jit
def _to_float16(quants: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """int8 → float16, exactly."""
    if FAST:
        # A byte c + 128 below the exponent byte 0x64 is the half 1024 + c + 128.
        halves = tl.inline_asm_elementwise(
            """{
            .reg .b32 t, b;
            xor.b32 t, $2, 0x80808080;
            mov.b32 b, 0x64646464;
            prmt.b32 $0, t, b, 0x5140;
            prmt.b32 $1, t, b, 0x7362;
            mov.b32 b, 0x64806480;
            sub.f16x2 $0, $0, b;
            sub.f16x2 $1, $1, b;
            }""",
            "=r,=r,r",
            [quants],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    else:
        halves = quants.to(tl.float16)
    return halves


@triton.jit
def store_heads(
    values: tl.tensor,
    scales: tl.tensor,
    x: tl.tensor,
    page: tl.tensor,
    scale_page: tl.tensor,
    head_step: tl.tensor,
    inside: tl.tensor,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> tl.tensor:
    """Write one token's keys or values of several heads, float32 [ROWS, DIM]; returns them as stored.

    page, scale_page: int64 offsets of row 0's slot; head_step: slots between rows; inside bool [ROWS].
    """
    row = tl.arange(0, ROWS) * head_step
    d = tl.arange(0, DIM)
    place = values + page + row[:, None] * HEAD_DIM + d[None, :]
    kept = inside[:, None] & (d[None, :] < HEAD_DIM)
    if QUANTIZED:
        groups: tl.constexpr = DIM // 32
        blocks = tl.reshape(x, (ROWS, groups, 32))
        scale = (tl.max(tl.abs(blocks), axis=2) / 127.0).to(tl.float16)
        divisor = scale.to(tl.float32)[:, :, None]
        quants = tl.floor(tl.where(divisor > 0, blocks / tl.where(divisor > 0, divisor, 1.0), 0.0) + 0.5)
        quants = tl.clamp(quants, -127.0, 127.0)
        tl.store(place, tl.reshape(quants, (ROWS, DIM)).to(tl.int8), mask=kept)
        group = tl.arange(0, groups)
        written: tl.constexpr = (HEAD_DIM + 31) // 32
        scale_place = scales + scale_page + row[:, None] * written + group[None, :]
        tl.store(scale_place, scale, mask=inside[:, None] & (group[None, :] < written))
        stored = tl.reshape(tl.reshape(quants, (ROWS, groups, 32)) * divisor, (ROWS, DIM))
    else:
        rounded = x.to(values.dtype.element_ty)
        tl.store(place, rounded, mask=kept)
        stored = rounded.to(tl.float32)
    return stored
