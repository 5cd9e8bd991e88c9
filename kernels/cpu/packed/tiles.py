"""Weights as packed tiles: what a CPU holds of a file's quantised matrices, and the only copy of them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from llvmlite import ir
from torch import Tensor

from kernels.contract import QuantizedMatrix
from kernels.cpu.block_readers import BYTES, READERS
from kernels.cpu.compiler import I1, I8, I16, I32, I64, INTS, LANES, Emitter, Value, compiled
from kernels.cpu.packed.form import FORMS, QUADS, VECTOR_BYTES, pack_quads, packed_bytes, sizes
from kernels.cpu.team import threads_for
from kernels.host_memory import host_bytes
from kernels.quant.formats import FORMATS, GGMLType

_SLICE_BYTES = 4 << 20
"""Of a file at a time: they are packed while they lie in the processor's cache."""
_ENDLESS_HALF = 0x7C00
"""Exponent bits of float16 of what is not finite."""
_ENDLESS_POWER = 253
"""Exponents of MXFP4 from which the least of its values is beyond float32."""

Allocate = Callable[..., Tensor]
"""From a shape to uint8 that is not filled."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight [rows, columns] in tiles of 16 rows (`kernels.cpu.packed.form`); the last may be padded."""

    type: GGMLType
    rows: int
    columns: int
    quants: Tensor
    """uint8 [tiles, bytes]."""
    scales: Tensor
    """uint8 [tiles, bytes]."""

    @property
    def tiles(self) -> int:
        """Of 16 rows."""
        return self.quants.shape[0]

    @property
    def blocks(self) -> int:
        """Of a row."""
        return self.columns // FORMATS[self.type].elements

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.quants.nbytes + self.scales.nbytes

    def part(self, first: int, tiles: int) -> "PackedMatrix":
        """Some of its tiles, in the same memory."""
        span = slice(first, first + tiles)
        return replace(self, rows=tiles * LANES, quants=self.quants[span], scales=self.scales[span])


def is_packable(parts: Sequence[QuantizedMatrix]) -> bool:
    """Whether these have one packed form; rows of all but the last must fill tiles."""
    whole = all(part.shape[0] % LANES == 0 for part in parts[:-1])
    return parts[0].type in FORMS and len({part.type for part in parts}) == 1 and whole


def pack(parts: Sequence[QuantizedMatrix], memory: Allocate = host_bytes) -> PackedMatrix | None:
    """Matrices stacked by rows, as `is_packable` says; None for scales that are not finite."""
    type, columns = parts[0].type, parts[0].shape[1]
    rows = sum(part.shape[0] for part in parts)
    tiles, own = -(-rows // LANES), sizes(type)
    blocks = columns // FORMATS[type].elements
    made = PackedMatrix(
        type, rows, columns,
        memory(tiles, blocks * own.groups * FORMS[type].group_bytes),
        memory(tiles, blocks * own.record_bytes),
    )  # fmt: skip
    assert made.nbytes == packed_bytes(type, (rows, columns))
    endless, tile = torch.zeros(1, dtype=torch.int64), 0
    for part in parts:
        for raw, order in _slices(part):
            count = -(-len(order) // LANES)
            pack_kernel(type)(
                threads_for(count), count, 1, len(order), blocks, raw.data_ptr(), order.data_ptr(),
                made.quants[tile].data_ptr(), made.scales[tile].data_ptr(), endless.data_ptr(),
            )  # fmt: skip
            tile += count
    return None if endless else made


class _Reading(threading.local):
    """What a thread reads files into: memory that is made anew costs more than what is read to it."""

    memory: Tensor | None = None

    def slice(self, nbytes: int) -> Tensor:
        """uint8 of so many bytes, overwritten by the next one."""
        if self.memory is None or self.memory.nbytes < nbytes:
            self.memory = host_bytes(max(nbytes, _SLICE_BYTES))
        return self.memory[:nbytes]


_reading = _Reading()


def _slices(part: QuantizedMatrix) -> Iterator[tuple[Tensor, Tensor]]:
    """(bytes, source row in them of every row), whole tiles after another."""
    rows, columns = part.shape
    line = columns // FORMATS[part.type].elements * FORMATS[part.type].nbytes
    if part.row_order is not None or isinstance(part.stored, Tensor):
        yield part.raw, torch.arange(rows) if part.row_order is None else part.row_order.contiguous()
        return
    step = max(1, _SLICE_BYTES // (line * LANES)) * LANES
    buffer = _reading.slice(min(rows, step) * line)
    order = torch.arange(step)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        part.stored.read_into(buffer[: count * line].numpy(), start * line)
        yield buffer, order[:count]


@compiled
def pack_kernel(type: GGMLType) -> ir.Module:
    """One thread takes tiles: the blocks of 16 rows after another, then their quants by quads."""
    e = Emitter(f"pack_{type.name}")
    tiles, chunk, rows, blocks = (e.parameter(index) for index in range(1, 5))
    raw, order, quants, scales, endless = (e.pointer(index) for index in range(5, 10))
    own, nbytes, group_bytes = sizes(type), FORMATS[type].nbytes, FORMS[type].group_bytes
    quads = e.bytes(own.groups * QUADS * VECTOR_BYTES)
    last = e.ir.sub(rows, e.const(1))
    with e.pieces(tiles, chunk) as tile, e.loop(e.const(0), blocks) as number:
        at = e.ir.add(e.ir.mul(tile, blocks), number)
        record = e.address(scales, e.ir.mul(at, e.const(own.record_bytes)), I8)
        with e.loop(e.const(0), e.const(LANES)) as lane:
            row = e.smaller(e.ir.add(e.ir.mul(tile, e.const(LANES)), lane), last)
            source = e.ir.add(e.ir.mul(e.load(e.address(order, row, I64), I64), blocks), number)
            block = e.address(raw, e.ir.mul(source, e.const(nbytes)), I8)
            _write_scales(e, type, block, e.address(record, lane, I8), lane, endless)
            _write_quants(e, type, block, e.address(quads, e.ir.mul(lane, e.const(4)), I8))
        first = e.ir.mul(at, e.const(own.groups))
        with e.loop(e.const(0), e.const(own.groups)) as group:
            place = e.address(quads, e.ir.mul(group, e.const(QUADS * VECTOR_BYTES)), I8)
            vectors = [e.load(e.address(place, e.const(VECTOR_BYTES * q), I8), INTS) for q in range(QUADS)]
            target = e.ir.mul(e.ir.add(first, group), e.const(group_bytes))
            pack_quads(e, type, vectors, e.address(quants, target, I8))
    return e.finish()


def _write_scales(
    e: Emitter, type: GGMLType, block: Value, record: Value, lane: Value, endless: Value
) -> None:
    """One row's factors and numbers to their lane; record: its first byte of the lane."""
    reader = READERS[type]
    bad: Value = ir.Constant(I1, 0)
    for number, at in enumerate(reader.halves):
        half = e.ir.load(e.address(block, e.const(at), I8), typ=I16, align=1)
        limit = ir.Constant(I16, _ENDLESS_HALF)
        bad = e.ir.or_(bad, e.ir.icmp_unsigned("==", e.ir.and_(half, limit), limit))
        place = e.address(e.address(record, lane, I8), e.const(2 * LANES * number), I8)
        e.ir.store(half, place, align=1)
    if reader.numbers is not None:
        numbers = e.ir.trunc(reader.numbers(e, block), BYTES)
        for number in range(FORMS[type].numbers):
            byte = e.ir.extract_element(numbers, ir.Constant(I32, number))
            at = 2 * LANES * len(reader.halves) + LANES * number
            e.store(byte, e.address(record, e.const(at), I8))
            if type is GGMLType.MXFP4:
                bad = e.ir.icmp_unsigned(">=", byte, ir.Constant(I8, _ENDLESS_POWER))
    with e.ir.if_then(bad):
        e.store(e.const(1), endless)


def _write_quants(e: Emitter, type: GGMLType, block: Value, quads: Value) -> None:
    """One row's quants to its 4 bytes of every quad."""
    reader = READERS[type]
    read = reader.places or reader.quants
    words = ir.VectorType(I32, LANES // 4)
    with e.loop(e.const(0), e.const(FORMATS[type].elements // reader.group)) as index:
        first = e.address(quads, e.ir.mul(index, e.const(reader.group * LANES)), I8)
        for half, vector in enumerate(read(e, block, index)):
            four = e.ir.bitcast(e.ir.trunc(vector, BYTES), words)
            for quad in range(LANES // 4):
                at = e.const(VECTOR_BYTES * (LANES // 4 * half + quad))
                word = e.ir.extract_element(four, ir.Constant(I32, quad))
                e.store(word, e.address(first, at, I8))
