"""Keys and values as a CPU's paged KV holds them: how compiled kernels read and write one of a head."""

from llvmlite import ir

from kernels.cpu.compiler import CACHE_LINE, F32, I8, I16, INTS, LANES, SHORTS, VECTOR, Emitter, Value
from kernels.quant.formats import KV_GROUP, KVFormat

_HALF = ir.HalfType()
_HALVES = ir.VectorType(_HALF, LANES)
_BYTES = ir.VectorType(I8, LANES)
_GROUP_PARTS = KV_GROUP // LANES
"""Vectors that share a scale of q8_0."""


class Lines:
    """A layer's memory, in lines of `dim` values each."""

    def __init__(self, e: Emitter, dim: int, kv_format: KVFormat, values: Value, scales: Value) -> None:
        """scales: of q8_0, a line's one after another."""
        self.e, self.dim, self.kv_format, self.values, self.scales = e, dim, kv_format, values, scales
        self._groups = -(-dim // KV_GROUP)

    def read(self, line: Value, parts: range) -> list[Value]:
        """Some vectors of a line, as float32."""
        e = self.e
        if self.kv_format == "float32":
            return [e.load(self._place(line, part, F32)) for part in parts]
        if self.kv_format == "float16":
            return [e.ir.fpext(e.load(self._place(line, part, I16), _HALVES), VECTOR) for part in parts]
        if self.kv_format == "bfloat16":
            wide = [e.ir.zext(e.load(self._place(line, part, I16), SHORTS), INTS) for part in parts]
            return [e.ir.bitcast(e.ir.shl(one, ir.Constant(INTS, [16] * LANES)), VECTOR) for one in wide]
        first = parts.start // _GROUP_PARTS
        groups = range(first, -(-parts.stop // _GROUP_PARTS))
        scales = [e.splat(e.ir.fpext(e.load(self._scale(line, group), _HALF), F32)) for group in groups]
        read = []
        for part in parts:
            quants = e.load(self._place(line, part, I8), _BYTES)
            value = e.ir.sitofp(e.ir.sext(quants, INTS), VECTOR)
            read.append(e.ir.fmul(value, scales[part // _GROUP_PARTS - first]))
        return read

    def prefetch(self, line: Value) -> None:
        """Ask for a line that will be read soon."""
        kind = {"float32": F32, "q8_0": I8}.get(self.kv_format, I16)
        step = CACHE_LINE * 8 // (32 if kind is F32 else kind.width) // LANES
        for part in range(0, self.dim // LANES, step):
            self.e.prefetch(self._place(line, part, kind))

    def write(self, parts: list[Value], line: Value) -> None:
        """A whole line."""
        e = self.e
        if self.kv_format == "q8_0":
            for group in range(self._groups):
                self._write_group(parts[group * _GROUP_PARTS : (group + 1) * _GROUP_PARTS], group, line)
            return
        for number, part in enumerate(parts):
            if self.kv_format == "float16":
                part = e.ir.fptrunc(part, _HALVES)
            elif self.kv_format == "bfloat16":
                part = e.to_bfloat16(part)
            e.store(part, self._place(line, number, F32 if self.kv_format == "float32" else I16))

    def _write_group(self, parts: list[Value], group: int, line: Value) -> None:
        """As `kernels.reference.paged_kv.quantize_kv` does, to the bit."""
        e = self.e
        largest = e.call("llvm.fabs", parts[0])
        for part in parts[1:]:
            largest = e.call("llvm.maxnum", largest, e.call("llvm.fabs", part))
        scale = e.ir.fptrunc(e.ir.fdiv(e.largest(largest), ir.Constant(F32, 127.0)), _HALF)
        e.store(scale, self._scale(line, group))
        wide = e.ir.fpext(scale, F32)
        some = e.ir.fcmp_ordered(">", wide, ir.Constant(F32, 0.0))
        divisor = e.splat(e.ir.select(some, wide, ir.Constant(F32, 1.0)))
        for number, part in enumerate(parts, group * _GROUP_PARTS):
            quant = e.call("llvm.floor", e.ir.fadd(e.ir.fdiv(part, divisor), e.vector(0.5)))
            quant = e.call("llvm.maxnum", e.call("llvm.minnum", quant, e.vector(127.0)), e.vector(-127.0))
            e.store(e.ir.trunc(e.ir.fptosi(quant, INTS), _BYTES), self._place(line, number, I8))

    def _place(self, line: Value, part: int, kind: Value) -> Value:
        e = self.e
        return e.address(
            self.values, e.ir.add(e.ir.mul(line, e.const(self.dim)), e.const(LANES * part)), kind
        )

    def _scale(self, line: Value, group: int) -> Value:
        e = self.e
        return e.address(self.scales, e.ir.add(e.ir.mul(line, e.const(self._groups)), e.const(group)), I16)
