"""Heads of one row of queries, keys and values: their norm and their rotation."""

from dataclasses import dataclass

from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import LANES, VECTOR, Emitter, Value
from kernels.cpu.norm import inverse_length

_NORM_BEFORE, _NORM_AFTER = 1, 2


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of queries and keys."""

    scaled: Tensor
    """[q_heads + kv_heads, dim], with sqrt(dim)."""
    eps_length: Tensor
    rotated: bool
    """Whether it follows the rotation."""

    @property
    def parameters(self) -> tuple[int, int, int]:
        """As the kernel takes them."""
        kind = _NORM_AFTER if self.rotated else _NORM_BEFORE
        return kind, self.scaled.data_ptr(), self.eps_length.data_ptr()


class Heads:
    """Heads of one row after their norm and rotation."""

    def __init__(self, e: Emitter, dim: int, kind: Value, weight: Value, eps_length: Value) -> None:
        self.e, self.dim, self.kind, self.weight, self.eps_length = e, dim, kind, weight, eps_length
        self.line: Value = None
        self.angles: Value = None

    def begin(self, line: Value, angles: Value) -> None:
        """Heads of another row."""
        self.line, self.angles = line, angles

    def plain(self, number: Value) -> list[Value]:
        """As it is."""
        e = self.e
        return head_parts(e, e.address(self.line, e.ir.mul(number, e.const(self.dim))), self.dim)

    def rotated(self, number: Value) -> list[Value]:
        """Norm before or after, or none."""
        parts = self._normed(_NORM_BEFORE, number, self.plain(number))
        return self._normed(_NORM_AFTER, number, self._turned(parts))

    def _normed(self, kind: int, number: Value, parts: list[Value]) -> list[Value]:
        e = self.e
        places = [e.variable(part) for part in parts]
        with e.ir.if_then(e.ir.icmp_signed("==", self.kind, e.const(kind))):
            squares = e.vector(0.0)
            for part in parts:
                squares = e.fma(part, part, squares)
            factor = inverse_length(e, squares, self.eps_length)
            scales = head_parts(e, e.address(self.weight, e.ir.mul(number, e.const(self.dim))), self.dim)
            for place, part, scale in zip(places, parts, scales, strict=True):
                e.ir.store(e.ir.fmul(e.ir.fmul(part, factor), scale), place)
        return [e.ir.load(place, typ=VECTOR) for place in places]

    def _turned(self, parts: list[Value]) -> list[Value]:
        """Neighbours turned by (cos, sin) pairs."""
        e = self.e
        even = [lane - lane % 2 for lane in range(LANES)]
        signs = ir.Constant(VECTOR, [-1.0, 1.0] * (LANES // 2))
        turned = []
        for part, pairs in zip(parts, head_parts(e, self.angles, self.dim), strict=True):
            sine = e.ir.fmul(e.shuffle(pairs, [lane + 1 for lane in even]), signs)
            swapped = e.shuffle(part, [lane ^ 1 for lane in range(LANES)])
            turned.append(e.fma(part, e.shuffle(pairs, even), e.ir.fmul(swapped, sine)))
        return turned


def head_parts(e: Emitter, base: Value, dim: int) -> list[Value]:
    """A line of `dim` values."""
    return [e.load(e.address(base, e.const(LANES * part))) for part in range(dim // LANES)]


def put_head(e: Emitter, parts: list[Value], base: Value) -> None:
    """Write a line."""
    for number, part in enumerate(parts):
        e.store(part, e.address(base, e.const(LANES * number)))
