"""Straight-line PTX run by a few lines of Python: it needs no GPU to be known right."""

import re
from collections.abc import Callable

import numpy as np

WORD = 0xFFFFFFFF
Registers = dict[str, int]


def execute(text: str, registers: Registers) -> Registers:
    """Run straight-line PTX of the instructions below; `registers` holds the inputs."""
    for statement in re.sub(r"\.reg[^;]*;|[{}]", "", text).split(";"):
        if not statement.strip():
            continue
        name, operands = statement.split(None, 1)
        target, *sources = [operand.strip() for operand in operands.split(",")]
        values = [registers[source] if source in registers else int(source, 0) for source in sources]
        registers[target] = INSTRUCTIONS[name](*values) & WORD
    return registers


def prmt(a: int, b: int, selector: int) -> int:
    pool = (a | b << 32).to_bytes(8, "little")
    picks = [(selector >> 4 * index) & 15 for index in range(4)]
    assert max(picks) < 8
    return int.from_bytes(bytes(pool[pick] for pick in picks), "little")


def lookup(a: int, b: int, c: int, table: int) -> int:
    return {0xE4: a & c | b & ~c, 0xEA: a & b | c, 0x6A: a & b ^ c}[table]


def in_halves(compute: Callable[..., np.ndarray]) -> Callable[..., int]:
    """An instruction on pairs of float16, which rounds once."""

    def run(*registers: int) -> int:
        values = np.array(registers, np.uint32).view(np.float16).reshape(-1, 2).astype(np.float64)
        return int(compute(*values).astype(np.float16).view(np.uint32)[0])

    return run


INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "mul.lo.u32": lambda a, b: a * b,
    "prmt.b32": prmt,
    "lop3.b32": lookup,
    "sub.rn.f16x2": in_halves(np.subtract),
    "mul.rn.f16x2": in_halves(np.multiply),
    "neg.f16x2": in_halves(np.negative),
    "fma.rn.f16x2": in_halves(lambda a, b, c: a * b + c),
}


def halves(register: int) -> list[float]:
    """The two float16 of a register."""
    return np.array([register], np.uint32).view(np.float16).astype(np.float64).tolist()


def pair(elements: np.ndarray) -> int:
    """A register of two 16-bit elements."""
    return int(elements[0]) | int(elements[1]) << 16
