"""How a device holds weights and KV, as data: the kernels' rules, told without importing them.

`kernels` says the same with tensors; tests hold the two together.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from engine.footprint.shape import Experts, Footprint, KVLayers, Linear, Matrix
from kernels.quant.formats import FORMATS, KV_GROUP, GGMLType, KVFormat


class Holding(StrEnum):
    """What becomes of a file's matrices."""

    PLANES = "planes"
    """A GPU's kernels: repacked as they are."""
    PACKED = "packed"
    """A CPU's kernels: repacked as they are, but for plain float types, which are widened."""
    DENSE = "dense"
    """torch: widened."""


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """One device under one choice of element types."""

    device: str
    """"cpu", "cuda:0", …"""
    title: str
    """What a person calls it."""
    holding: Holding
    weight_itemsize: int
    """Bytes of a widened weight."""
    kv_format: KVFormat
    """One of `KV_BYTES`."""
    block_size: int
    """Tokens of a KV block."""
    gpu: str = ""
    """The driver's name of a GPU."""
    kv_choices: tuple[KVFormat, ...] = ()
    """What `kv_format` may become for one model, the best first; it alone where nothing is given."""

    pass_tokens: int = 0
    """Most tokens of a pass whose scratch is a GPU's; 0 where scratch is not counted."""
    host: "DeviceRules | None" = None
    """How the processor beside a GPU holds what the GPU does not; None where it computes no part."""

    def __post_init__(self) -> None:
        if not self.kv_choices:
            object.__setattr__(self, "kv_choices", (self.kv_format,))

    def as_data(self) -> dict[str, Any]:
        """Itself as JSON can hold it, for `from_data`."""
        host = None if self.host is None else self.host.as_data()
        return asdict(self) | {"kv_choices": list(self.kv_choices), "host": host}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "DeviceRules":
        """Read what `as_data` gave; raises TypeError, ValueError or KeyError for bad data."""
        choices = tuple(data["kv_choices"])
        host = None if data["host"] is None else cls.from_data(data["host"])
        rules = cls(**(data | {"holding": Holding(data["holding"]), "kv_choices": choices, "host": host}))
        if not {rules.kv_format, *choices} <= KV_BYTES.keys() or rules.block_size < 1:
            raise ValueError(f"no rules of a device: {data}")
        return rules

    @property
    def on_gpu(self) -> bool:
        """Whether it has memory of its own."""
        return self.device.startswith("cuda")


KV_BYTES: dict[KVFormat, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "q8_0": 1}
"""Bytes of one value of a key."""

PLANE_BYTES = {
    GGMLType.Q4_0: 144,
    GGMLType.Q4_1: 160,
    GGMLType.Q5_0: 176,
    GGMLType.Q5_1: 192,
    GGMLType.Q8_0: 272,
    GGMLType.Q2_K: 84,
    GGMLType.Q3_K: 116,
    GGMLType.Q4_K: 148,
    GGMLType.Q5_K: 180,
    GGMLType.Q6_K: 212,
    GGMLType.IQ4_NL: 144,
    GGMLType.IQ4_XS: 140,
    GGMLType.MXFP4: 136,
    GGMLType.NVFP4: 144,
    GGMLType.IQ1_S: 108,
    GGMLType.IQ1_M: 116,
    GGMLType.IQ2_XXS: 108,
    GGMLType.IQ2_XS: 116,
    GGMLType.IQ2_S: 116,
    GGMLType.IQ3_XXS: 140,
    GGMLType.IQ3_S: 140,
    GGMLType.TQ1_0: 68,
    GGMLType.TQ2_0: 68,
}
"""Of 256 weights of a row, in the layout of a GPU's kernels."""
TILE_ROWS, TILE_COLUMNS = 64, 256
"""To multiples of these a GPU's matrices are padded."""
KEPT_BYTES = {GGMLType.F32: 4, GGMLType.F16: 2, GGMLType.BF16: 2}
"""Types that a GPU's kernels read as they are; others become float16."""

PACKED_BYTES = {
    GGMLType.Q4_0: 144,
    GGMLType.Q4_1: 160,
    GGMLType.Q5_0: 176,
    GGMLType.Q5_1: 192,
    GGMLType.Q8_0: 272,
    GGMLType.Q2_K: 84,
    GGMLType.Q3_K: 114,
    GGMLType.Q4_K: 148,
    GGMLType.Q5_K: 180,
    GGMLType.Q6_K: 210,
    GGMLType.IQ4_NL: 144,
    GGMLType.IQ4_XS: 138,
    GGMLType.MXFP4: 136,
}
"""Of 256 weights of a row, in the layout of a CPU's kernels; other quantised types stay as in the file."""
PACKED_ROWS = 16
"""To a multiple of these a CPU's matrices are padded."""

EXPERT_TYPES = frozenset(PACKED_BYTES) | frozenset(KEPT_BYTES)
"""Types whose experts a CPU's kernels read from the file's own blocks."""
KERNEL_COLUMNS = 16
"""What the width of an expert or of a head must be a multiple of for a CPU's kernels."""

DENSE_EMBEDDING_BYTES = 64 << 20
"""Embeddings up to this size are float32 where torch computes; larger ones stay as in the file."""


def weight_bytes(footprint: Footprint, rules: DeviceRules) -> int:
    """Memory that a file's weights take of the device."""
    total = 4 * footprint.vector_values + embedding_bytes(footprint, rules)
    total += sum(count * linear_bytes(linear, rules) for linear, count in footprint.linears)
    return total + sum(count * expert_bytes(experts, rules) for experts, count in footprint.experts)


def read_bytes(footprint: Footprint, rules: DeviceRules) -> int:
    """Bytes of weights that a token of one chat reads while it is written: of experts only those used."""
    total = sum(count * linear_bytes(linear, rules) for linear, count in footprint.linears)
    for experts, count in footprint.experts:
        total += count * expert_bytes(experts, rules) * experts.used // experts.experts
    return total


def kv_bytes(footprint: Footprint, rules: DeviceRules, tokens: int) -> int:
    """Memory of the KV of one chat of so many tokens, in whole blocks."""
    windows = kept_windows(footprint)
    blocks = -(-tokens // rules.block_size)
    total = 0
    for group in footprint.kv:
        # A window that begins within a block holds one more.
        most = 1 + -(-group.window // rules.block_size) if group.window in windows else blocks
        total += min(blocks, most) * block_bytes(group, rules)
    return total


def kept_windows(footprint: Footprint) -> set[int]:
    """Windows whose layers give back what they have passed: beside others that see all, if shorter."""
    windows = {group.window for group in footprint.kv}
    return {size for size in windows if 0 < size < footprint.context_length} if 0 in windows else set()


def block_bytes(group: KVLayers, rules: DeviceRules) -> int:
    """Memory of one block in all layers of a group."""
    scales = 2 * -(-group.head_dim // KV_GROUP) if rules.kv_format == "q8_0" else 0
    slot = group.head_dim * KV_BYTES[rules.kv_format] + scales
    return 2 * group.layers * group.kv_heads * rules.block_size * slot


def linear_bytes(linear: Linear, rules: DeviceRules) -> int:
    """Memory of one linear layer."""
    rows, columns = sum(part.rows for part in linear.parts), linear.columns
    bias = 4 * rows if linear.biased else 0
    if rules.holding is Holding.PLANES:
        if linear.paired and len({part.type for part in linear.parts}) > 1:
            return bias + 2 * rows * columns
        return bias + sum(_plane_bytes(part, columns) for part in _segments(linear.parts))
    if rules.holding is Holding.PACKED:
        return bias + sum(_packed_bytes(part, columns, rules) for part in _segments(linear.parts))
    return bias + rows * columns * rules.weight_itemsize


def expert_bytes(experts: Experts, rules: DeviceRules) -> int:
    """Memory of the experts of one layer; torch keeps those of a GPU in host memory."""
    up_rows = sum(part.rows for part in experts.gate_up)
    if rules.holding is not Holding.PLANES:
        if rules.on_gpu:
            return 0
        parts = [*((part, experts.hidden) for part in experts.gate_up), (experts.down, experts.size)]
        packed = rules.holding is Holding.PACKED and packs(experts)
        held = (
            _packed_bytes(part, columns, rules) if packed else _file_bytes(part, columns)
            for part, columns in parts
        )
        return experts.experts * sum(held)
    kinds = {part.type for part in experts.gate_up}
    if len(kinds) > 1:
        gate_up = 2 * up_rows * experts.hidden
    else:
        gate_up = _plane_bytes(Matrix(kinds.pop(), up_rows), experts.hidden)
    return experts.experts * (gate_up + _plane_bytes(experts.down, experts.size))


def packs(experts: Experts) -> bool:
    """Whether a CPU's kernels can have experts packed."""
    parts = (*experts.gate_up, experts.down)
    return all(part.type in PACKED_BYTES and part.rows % PACKED_ROWS == 0 for part in parts)


def embedding_bytes(footprint: Footprint, rules: DeviceRules) -> int:
    """Memory of the embedding, where it is none of the output matrix's."""
    embedding = footprint.embedding
    if rules.holding is Holding.PLANES:
        return 0 if footprint.tied else linear_bytes(embedding, rules)
    (part,) = embedding.parts
    if rules.holding is Holding.PACKED:
        if part.type not in PACKED_BYTES:
            return _file_bytes(part, embedding.columns)
        return 0 if footprint.tied else linear_bytes(embedding, rules)
    dense = 4 * part.rows * embedding.columns
    return dense if dense <= DENSE_EMBEDDING_BYTES else _file_bytes(part, embedding.columns)


def _segments(parts: Iterable[Matrix]) -> list[Matrix]:
    """Neighbours of one type are one matrix."""
    joined: list[Matrix] = []
    for part in parts:
        if joined and joined[-1].type == part.type:
            part = Matrix(part.type, joined.pop().rows + part.rows)
        joined.append(part)
    return joined


def _plane_bytes(part: Matrix, columns: int) -> int:
    if part.type not in PLANE_BYTES:
        return KEPT_BYTES.get(part.type, 2) * part.rows * columns
    tiles, blocks = -(-part.rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    return tiles * TILE_ROWS * blocks * PLANE_BYTES[part.type]


def _packed_bytes(part: Matrix, columns: int, rules: DeviceRules) -> int:
    if part.type in KEPT_BYTES:
        return part.rows * columns * rules.weight_itemsize
    if part.type not in PACKED_BYTES:
        return _file_bytes(part, columns)
    return -(-part.rows // PACKED_ROWS) * PACKED_ROWS * columns * PACKED_BYTES[part.type] // 256


def _file_bytes(part: Matrix, columns: int) -> int:
    form = FORMATS[part.type]
    return part.rows * columns // form.elements * form.nbytes
