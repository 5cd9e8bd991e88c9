"""Every launch of the hot path at the shapes of an 8 B model, on tensors without contents."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from engine.scheduler.buckets import VERIFY_TOKENS
from kernels.attention.decode import attend_decode, attention_decode
from kernels.attention.decode_plan import plan_decode
from kernels.attention.prefill import attention_prefill
from kernels.attention.rope_append import rope_append
from kernels.attention.shape import AttentionShape, make_output
from kernels.contract import Rotation, Routing
from kernels.cuda.activations import SUM_WIDTH, Activations, PassTables
from kernels.experts.experts import TritonExperts, apply_experts
from kernels.experts.norm_router import norm_and_route
from kernels.experts.router import FEW_TOKENS, TICKET_STRIDE
from kernels.linear.gate import gate_activations, sigmoid_gate
from kernels.linear.linear import Segment, TritonLinear
from kernels.linear.norm import add_norm
from kernels.linear.norm_columns import norm_columns
from kernels.linear.rows import MAX_ROWS, gated_rows, linear_rows, linear_rows_parts
from kernels.linear.wide import gated_wide, linear_batch_invariant_parts, linear_wide
from kernels.planes import layout
from kernels.planes.dequant import dequantize_planes
from kernels.planes.embedding import embed_rows
from kernels.planes.layout import LAYOUTS, PlanesFormat, PlanesMatrix
from kernels.quant.formats import GGMLType
from kernels.sampling.sampler import sample
from kernels.state.decode_state import DecodeState, PassBuffers, advance, fill_pass
from kernels.state.draft_rows import set_draft_rows
from kernels.state.sampler_state import SamplerState
from kernels.streaming.tiles import planes_of_tiles
from tests.kernels.kv_cases import make_kv

HIDDEN, VOCAB = 4096, 151_936
COUNTED = (8, 16, 32, 64, 256)
"""Tokens of the quantised linears whose instructions are counted."""
META = torch.device("meta")
SHAPE = AttentionShape(q_heads=32, kv_heads=8, head_dim=128, block_size=64, scale=128**-0.5)
FEW_HEADS = AttentionShape(q_heads=32, kv_heads=4, head_dim=128, block_size=64, scale=128**-0.5)
LONG_HEADS = AttentionShape(q_heads=16, kv_heads=2, head_dim=512, block_size=64, scale=1.0, norms_values=True)


@dataclass(frozen=True)
class Launch:
    """One call of a public function; it makes its own tensors."""

    name: str
    run: Callable[[], object]
    weights: bool = False
    """A product with quantised weights: its instructions are counted."""
    slow: bool = False
    """Compilers take seconds."""
    sibling: bool = False
    """Much the same kernel as another launch's: the suite leaves it to `check_sass`."""
    target: str = ""
    """What the suite compiles it for, if not for whose turn it is: options differ between makers."""


def launches() -> list[Launch]:
    """All launches, in a fixed order."""
    return [*_norms(), *_linears(), *_pairs(), *_experts(), *_attention(), *_ticks()]


def _norms() -> Iterator[Launch]:
    for tokens, splits in ((1, 0), (1, 4), (32, 2), (2048, 1)):
        yield Launch(f"norm {tokens} tokens, {splits} splits", partial(_norm, tokens, splits))
    yield Launch("norm of picked rows", partial(_norm, 2048, 1, 32))
    beside = partial(add_norm, _empty(8, HIDDEN), _empty(8, 8, HIDDEN), _empty(HIDDEN), 1e-6, overlaps=True)
    yield Launch("norm beside the next kernel", beside)
    yield Launch("residual without a norm", partial(add_norm, _empty(32, HIDDEN), None, None, 0.0))
    yield Launch("norms of all heads", partial(_norm_columns, 32))


def _linears() -> Iterator[Launch]:
    firsts: dict[PlanesFormat, GGMLType] = {}
    for type, form in LAYOUTS.items():
        firsts.setdefault(form, type)
    for type in firsts.values():
        other = type not in (GGMLType.Q4_K, GGMLType.Q6_K)
        for tokens in COUNTED:
            run = partial(_rows if tokens <= MAX_ROWS else _wide, type, tokens)
            alike = other or tokens in (16, 32, 64)
            yield Launch(f"{type.name} linear, {tokens} tokens", run, weights=True, sibling=alike)
        yield Launch(f"{type.name} to float16", partial(_dequantize, type), sibling=other)
        yield Launch(f"{type.name} embedding", partial(_embed, type), sibling=other)
    for type in (GGMLType.Q4_K, GGMLType.Q6_K):
        held = partial(linear_rows, _activations(8, 2048), _planes(type, 2048, 2048))
        yield Launch(
            f"{type.name} linear, weights before inputs", held, slow=True, sibling=type != GGMLType.Q4_K
        )
    for tokens in (8, 256):
        yield Launch(f"Q4_K linear with a gate, {tokens} tokens", partial(_gated, GGMLType.Q4_K, tokens))
    yield Launch("Q4_K linear, any tokens", partial(_batch_invariant, GGMLType.Q4_K), sibling=True)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        yield Launch(f"{str(dtype)[6:]} linear, 8 tokens", partial(_dense, dtype))
    for type in (GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q6_K):
        other = type is not GGMLType.Q6_K
        yield Launch(f"{type.name} planes of packed tiles", partial(_planes_of_tiles, type), sibling=other)
    yield Launch("gate", partial(_gate, 256))
    yield Launch("gate of attention", partial(sigmoid_gate, _activations(32), _empty(2, 32, HIDDEN)))


def _pairs() -> Iterator[Launch]:
    for tokens in (8, 16, MAX_ROWS):
        yield Launch(
            f"q, k beside v of two types, {tokens} tokens", partial(_pair, tokens), sibling=tokens > 8
        )
    yield Launch("q, k beside v, weights before inputs", partial(_pair, 8, 2048), slow=True, sibling=True)


def _experts() -> Iterator[Launch]:
    for tokens in (4, 8, 16, 256):
        run = partial(_apply_experts, GGMLType.Q4_K, tokens)
        yield Launch(f"Q4_K experts, {tokens} tokens", run, slow=tokens == 8, sibling=tokens == 16)
    mixed = partial(_apply_experts, GGMLType.Q4_K, 8, GGMLType.Q6_K)
    yield Launch("Q4_K and Q6_K experts, 8 tokens", mixed, slow=True, sibling=True)
    small = partial(_apply_experts, GGMLType.IQ2_XXS, 8)
    yield Launch("IQ2_XXS experts, 8 tokens", small, slow=True, sibling=True)
    four = partial(_apply_experts, GGMLType.MXFP4, 8, shape=(32, 4, 2880, 2880))
    yield Launch("MXFP4 experts, 8 tokens with 4 each", four, slow=True, sibling=True)
    yield Launch("norm and router of one token", _norm_and_route)
    yield Launch("float16 experts", partial(_apply_experts, None, 4))


def _attention() -> Iterator[Launch]:
    overlapping = partial(_decode, "float16", overlaps=True)
    yield Launch("decode attention beside the next kernel", overlapping, slow=True, sibling=True)
    held = partial(_decode, "float16", 8, FEW_HEADS)
    yield Launch("decode attention, first tile before inputs", held, slow=True, sibling=True)
    for kv_format in ("float16", "bfloat16", "q8_0", "float32"):
        other = kv_format != "float16"
        yield Launch(f"rope {kv_format}", partial(_rope, kv_format))
        yield Launch(f"decode attention {kv_format}", partial(_decode, kv_format), slow=True, sibling=other)
        yield Launch(f"mixed attention {kv_format}", partial(_mixed, kv_format), slow=True, sibling=True)
        drafts = partial(_mixed, kv_format, VERIFY_TOKENS[-1])
        yield Launch(f"attention of drafts {kv_format}", drafts, slow=True, sibling=True)
        if kv_format != "float32":
            name = f"{kv_format}, heads of {LONG_HEADS.head_dim}"
            long_rope = partial(_rope, kv_format, shape=LONG_HEADS)
            yield Launch(f"rope {name}", long_rope, sibling=other, target="sm_90")
            long_decode = partial(_decode, kv_format, shape=LONG_HEADS)
            yield Launch(f"decode attention {name}", long_decode, slow=True, sibling=other)
            long_prefill = partial(_prefill, kv_format, 256, LONG_HEADS)
            yield Launch(f"prefill attention {name}", long_prefill, slow=True, sibling=True)
        for tokens in (256, 2048):
            name = f"prefill attention {kv_format}, {tokens} tokens"
            alike = other or tokens == 2048
            yield Launch(name, partial(_prefill, kv_format, tokens), slow=True, sibling=alike)


def _ticks() -> Iterator[Launch]:
    yield Launch("tables of a decode pass", partial(_tick, 32, 0, 32))
    yield Launch("tables of a mixed pass", partial(_tick, 7, 8, 256))
    yield Launch("rows of drafts", _draft_rows)
    yield Launch("sampler 1 row", partial(_sample, 1), slow=True)
    yield Launch("sampler 32 rows", partial(_sample, 32), slow=True, sibling=True)
    yield Launch("masks of 8 rows", partial(_masks, 8))


def _empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=META)


def _norm(tokens: int, splits: int, picked: int = 0) -> object:
    delta = _empty(splits, tokens, HIDDEN) if splits else None
    rows = _empty(picked, dtype=torch.int32) if picked else None
    return add_norm(_empty(tokens, HIDDEN), delta, _empty(HIDDEN), 1e-6, rows)


def _norm_columns(tokens: int) -> object:
    widths = (SHAPE.q_heads * SHAPE.head_dim, SHAPE.kv_heads * SHAPE.head_dim)
    return norm_columns(_qkv(tokens)[0], [(_empty(width), 1e-6) for width in widths])


def _planes(type: GGMLType, rows: int, columns: int) -> PlanesMatrix:
    return layout.empty_planes(type, (rows, columns), META)


def _activations(tokens: int, columns: int = HIDDEN) -> Activations:
    return Activations(_empty(tokens, columns, dtype=torch.float16), _empty(tokens, columns // SUM_WIDTH))


def _wide(type: GGMLType, tokens: int) -> object:
    return linear_wide(_activations(tokens), _planes(type, HIDDEN, HIDDEN), None)


def _batch_invariant(type: GGMLType) -> object:
    return linear_batch_invariant_parts(_activations(3), [(_planes(type, HIDDEN, HIDDEN), None)])


def _pair(tokens: int, hidden: int = HIDDEN) -> object:
    first, second = _planes(GGMLType.Q4_K, hidden + 1024, hidden), _planes(GGMLType.Q6_K, 1024, hidden)
    return linear_rows_parts(_activations(tokens, hidden), [(first, None), (second, None)])


def _rows(type: GGMLType, tokens: int) -> object:
    return linear_rows(_activations(tokens), _planes(type, 6144, HIDDEN))


def _dense(dtype: torch.dtype) -> object:
    return linear_rows(_activations(8), _empty(HIDDEN, HIDDEN, dtype=dtype))


def _gated(type: GGMLType, tokens: int) -> object:
    weights = _planes(type, 2 * 12_288, HIDDEN)
    if tokens <= MAX_ROWS:
        return gated_rows(_activations(tokens), weights)
    return gated_wide(_activations(tokens), weights, None)


def _apply_experts(
    first: GGMLType | None,
    tokens: int,
    second: GGMLType | None = None,
    shape: tuple[int, int, int, int] = (128, 8, 2048, 768),
) -> object:
    """second: the type of down where it is not that of gate and up; shape: experts, used, hidden and size."""
    count, used, hidden, size = shape

    def weight(type: GGMLType | None, rows: int, columns: int) -> PlanesMatrix | torch.Tensor:
        if type is None:
            return _empty(count * rows, columns, dtype=torch.float16)
        return _planes(type, count * rows, columns)

    router = TritonLinear([Segment(_empty(count, hidden), None)])
    routing = Routing(used, "softmax", normalised=True, scale=1.0)
    experts = TritonExperts(
        count, router, None, weight(first, 2 * size, hidden), None, weight(second or first, hidden, size),
        None, size, hidden,
        routing, "silu", _empty(FEW_TOKENS * TICKET_STRIDE, dtype=torch.int32), _empty(65, dtype=torch.int32),
    )  # fmt: skip
    return apply_experts(_activations(tokens, hidden), experts)


def _norm_and_route() -> None:
    hidden, experts = 2048, 128
    tickets, done = (_empty(size, dtype=torch.int32) for size in (FEW_TOKENS * TICKET_STRIDE, 65))
    norm_and_route(
        _empty(1, hidden), _empty(8, 1, hidden), _empty(hidden), 1e-6, _empty(experts, hidden), None, None,
        None, Routing(8, "softmax", normalised=True, scale=1.0), tickets, done,
    )  # fmt: skip


def _dequantize(type: GGMLType) -> None:
    dequantize_planes(_planes(type, HIDDEN, HIDDEN), _empty(HIDDEN, HIDDEN, dtype=torch.float16))


def _planes_of_tiles(type: GGMLType) -> None:
    packed = _empty(1 << 24, dtype=torch.uint8)
    planes_of_tiles(packed, (0, 1 << 22, 1 << 23, 3 << 22), _planes(type, 1024, HIDDEN), 0, 8, 1024)


def _embed(type: GGMLType) -> object:
    return embed_rows(_empty(32, dtype=torch.int32), _planes(type, HIDDEN, HIDDEN))


def _gate(tokens: int) -> object:
    return gate_activations(_empty(2, tokens, 2 * 12_288))


def _kv(kv_format: str, shape: AttentionShape = SHAPE):
    return make_kv(36, 100, shape.kv_heads, shape.head_dim, shape.block_size, kv_format, META)


def _tables(decode: int, tokens: int) -> PassTables:
    """`decode` rows, and one chunk with the other tokens."""
    sequences = decode + (tokens > decode)
    return PassTables(
        query_starts=_empty(sequences + 1, dtype=torch.int32),
        context_lens=_empty(sequences, dtype=torch.int32),
        block_tables=_empty(sequences, 640, dtype=torch.int32),
        positions=_empty(tokens, dtype=torch.int32),
        slots=_empty(tokens, dtype=torch.int64),
        num_decode=decode,
        num_tokens=tokens,
    )


def _rotation(shape: AttentionShape = SHAPE) -> Rotation:
    return Rotation(_empty(shape.head_dim // 2, dtype=torch.float64), 1.0, "halves")


def _qkv(tokens: int, shape: AttentionShape = SHAPE) -> tuple[torch.Tensor, torch.Tensor]:
    """Four partial sums, and the weights of the head norms."""
    heads = shape.q_heads + 2 * shape.kv_heads
    return _empty(4, tokens, heads * shape.head_dim), _empty(shape.normed_heads, shape.head_dim)


def _rope(kv_format: str, tokens: int = 32, shape: AttentionShape = SHAPE) -> object:
    qkv, norm = _qkv(tokens, shape)
    layer = _kv(kv_format, shape).layer(1)
    return rope_append(qkv, _tables(tokens, tokens), layer, shape, _rotation(shape), norm, 1e-6)


def _queries(kv_format: str, tokens: int, shape: AttentionShape = SHAPE) -> torch.Tensor:
    kind = torch.float32 if kv_format == "float32" else torch.float16
    return _empty(tokens, shape.q_heads, shape.head_dim, dtype=kind)


def _decode(kv_format: str, rows: int = 32, shape: AttentionShape = SHAPE, overlaps: bool = False) -> None:
    tables, layer = _tables(rows, rows), _kv(kv_format, shape).layer(1)
    plan = plan_decode(tables, shape, rotation=_rotation(shape))
    qkv, norm = _qkv(rows, shape)
    out = make_output(rows, shape, META)
    attend_decode(qkv, tables, layer, shape, plan, out, norm, 1e-6, overlaps=overlaps)


def _mixed(kv_format: str, rows: int = 7) -> None:
    """Decode rows beside a chunk: another kernel has rotated and appended."""
    tables, layer = _tables(rows, 256), _kv(kv_format).layer(1)
    out = make_output(256, SHAPE, META)
    attention_decode(_queries(kv_format, 256), tables, layer, SHAPE, plan_decode(tables, SHAPE), out)


def _prefill(kv_format: str, tokens: int, shape: AttentionShape = SHAPE) -> None:
    out, layer = make_output(tokens, shape, META), _kv(kv_format, shape).layer(1)
    attention_prefill(_queries(kv_format, tokens, shape), _tables(0, tokens), layer, shape, out)


def _tick(decode: int, chunks: int, tokens: int) -> None:
    sampler = SamplerState.create(64, VOCAB, META)
    state = DecodeState.create(64, 640, SHAPE.block_size, [1, 2], 16, META)
    rows = decode + chunks
    fill_pass(state, PassBuffers.create(state, decode, chunks, tokens, rows))
    ids = _empty(rows, dtype=torch.int32)
    advance(state, ids, ids, ids, sampler)


def _masks(rows: int) -> None:
    words = _empty(rows, -(-VOCAB // 32), dtype=torch.int32)
    SamplerState.create(64, VOCAB, META).set_masks(_empty(rows, dtype=torch.int32), words)


def _draft_rows() -> None:
    tokens = VERIFY_TOKENS[-1]
    sampler = SamplerState.create(64, VOCAB, META, tokens)
    state = DecodeState.create(64, 640, SHAPE.block_size, [1, 2], 16, META, tokens)
    set_draft_rows(state, sampler, PassBuffers.create(state, tokens, 0, tokens, tokens, drafts=True))


def _sample(rows: int) -> object:
    state = SamplerState.create(64, VOCAB, META)
    slots, lengths = _empty(rows, dtype=torch.int32), _empty(64, 8, dtype=torch.int32)[:, 1]
    return sample(_empty(1, rows, VOCAB), state, slots, lengths)
