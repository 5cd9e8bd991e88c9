"""AMX: eight registers of up to 16 rows of 64 bytes, and products of bytes between them.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

import ctypes
import platform
from functools import cache

from llvmlite import binding, ir

from kernels.cpu.compiler import CACHE_LINE, I8, I16, I64, Emitter, Value

REGISTER_ROWS = 16
_REQUEST, _TILE_DATA, _ARCH_PRCTL = 0x1023, 18, 158
"""Linux has a process ask before its threads may use the registers."""
_COLUMNS_AT, _ROWS_AT = 16, 48
"""Of the block that says how large registers are: 16 bits each, and 8 bits each."""
_POINTER = ir.PointerType()


@cache
def has_tile_registers() -> bool:
    """Whether this processor has them for bytes, and the system lets this process use them."""
    features = binding.get_host_cpu_features()
    if not (features.get("amx-tile") and features.get("amx-int8") and features.get("avx512vnni")):
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    arguments = (ctypes.c_long(value) for value in (_ARCH_PRCTL, _REQUEST, _TILE_DATA))
    return int(ctypes.CDLL(None).syscall(*arguments)) == 0


class TileRegisters:
    """Writes code that uses them. Registers go by their numbers, 0 to 7."""

    def __init__(self, e: Emitter, columns: dict[int, int], rows: dict[int, int]) -> None:
        """columns: bytes of a row of each register; rows: of those that `set_rows` leaves alone."""
        self._e = e
        self._followers = sorted(set(columns) - set(rows))
        self._block = e.bytes(CACHE_LINE)
        self._rows = e.variable(e.const(0))
        for word in range(CACHE_LINE // 8):
            e.store(e.const(int(word == 0)), e.address(self._block, e.const(word), I64))
        for number, count in columns.items():
            at = e.address(self._block, e.const(_COLUMNS_AT + 2 * number), I8)
            e.store(ir.Constant(I16, count), at)
        for number, count in rows.items():
            e.store(ir.Constant(I8, count), e.address(self._block, e.const(_ROWS_AT + number), I8))

    def set_rows(self, rows: Value) -> None:
        """Of the other registers, int64. What any register held is lost where that changes."""
        e = self._e
        with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.load(self._rows, typ=I64), rows)):
            e.ir.store(rows, self._rows)
            narrow = e.ir.trunc(rows, I8)
            for number in self._followers:
                e.store(narrow, e.address(self._block, e.const(_ROWS_AT + number), I8))
            self._call("ldtilecfg", self._block)

    def release(self) -> None:
        """To be called once at the end: the system saves and restores less of a thread then."""
        self._call("tilerelease")

    def zero(self, number: int) -> None:
        """Make all of it 0."""
        self._call("tilezero", _number(number))

    def load(self, number: int, place: Value, stride: Value) -> None:
        """Rows that lie `stride` bytes apart."""
        self._call("tileloadd64", _number(number), place, stride)

    def store(self, number: int, place: Value, stride: Value) -> None:
        """Rows to where they lie `stride` bytes apart."""
        self._call("tilestored64", _number(number), place, stride)

    def add_products(self, sums: int, signed: int, unsigned: int) -> None:
        """sums[m, n] += Σ over k and i of signed[m, 4k + i] · unsigned[k, 4n + i]; sums are int32."""
        self._call("tdpbsud", *(_number(number) for number in (sums, signed, unsigned)))

    def _call(self, name: str, *operands: Value) -> None:
        name = f"llvm.x86.{name}"
        kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        function = self._e.module.globals.get(name) or ir.Function(self._e.module, kind, name)
        self._e.ir.call(function, operands)


def _number(number: int) -> Value:
    return ir.Constant(I8, number)
